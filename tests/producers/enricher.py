"""A loop that writes numbers 0 to `count` - 1 once each, whichever of its processes are stopped and go on.

It starts its producer, reads what is written already, and goes on behind that.
"""

import sys
import time

from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import FolkmootError
from tests.producers.test_end_to_end import read_all

PARTITIONS = 3
TOPIC = "enriched"


def main(zookeeper: str, brokers: str, count: int) -> None:
    try:
        with Producer(zookeeper=zookeeper, transactional_id="enricher-1", linger=0.0) as producer:
            log = read_all(brokers.split(","), TOPIC)
            written = {int(each.value or b"") for records in log.values() for each in records}
            print("reading is over", flush=True)
            for number in range(count):
                if number not in written:
                    producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                    time.sleep(0.002)
    except FolkmootError as error:
        print(type(error).__name__, flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
