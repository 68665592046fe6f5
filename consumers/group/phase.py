"""Where a member is in its life.

```
        Join done                      Leaving            all let go, Leave done
JOINING ─────────► MEMBER ─────────────────────► LEAVING ───────────────────────► LEFT
   ▲                 │ session lost, the member's node removed, the application gone:    ▲
   └─────────────────┤ everything is dropped                                            │
                     └──────────────────────────────────────────────────────────────────┘
                       another process has our instance id
```
"""

from enum import Enum


class Phase(Enum):
    """As drawn above."""

    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"
