module folkmoot/foreign

go 1.24.0

require (
	github.com/hamba/avro/v2 v2.31.0
	github.com/twmb/franz-go/pkg/sr v1.8.0
)
