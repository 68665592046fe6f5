// franz-go's `sr`, with hamba/avro for the bytes behind an id: franz URL. One JSON object a line, as line.py.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/sr"
)

type asked struct {
	Call, Subject, Topic, Schema, Level, Mode, Data string
	ID, Version                                     int
	Permanent                                       bool
	References                                      []sr.SchemaReference
	Value                                           any
}

var client *sr.Client

func main() {
	var err error
	patient := sr.HTTPClient(&http.Client{Timeout: time.Minute}) // its own waits for five seconds
	if client, err = sr.NewClient(sr.URLs(os.Args[1]), patient); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var question asked
		if err := json.Unmarshal(lines.Bytes(), &question); err != nil {
			panic(err)
		}
		result, err := answer(context.Background(), question)
		told := map[string]any{"result": result}
		if err != nil {
			failure := map[string]any{"code": nil, "message": err.Error()}
			var response *sr.ResponseError
			if errors.As(err, &response) {
				failure["code"] = response.ErrorCode
			}
			told = map[string]any{"error": failure}
		}
		text, err := json.Marshal(told)
		if err != nil {
			panic(err)
		}
		fmt.Printf(">%s\n", text)
	}
}

func answer(ctx context.Context, q asked) (any, error) {
	schema := sr.Schema{Schema: q.Schema, References: q.References}
	how := sr.DeleteHow(q.Permanent)
	switch q.Call {
	case "register":
		return client.RegisterSchema(ctx, q.Subject, schema, -1, -1)
	case "lookup":
		return version(client.LookupSchema(ctx, q.Subject, schema))
	case "schema":
		return client.SchemaTextByID(ctx, q.ID)
	case "latest":
		return version(client.SchemaByVersion(ctx, q.Subject, -1))
	case "version":
		return version(client.SchemaByVersion(ctx, q.Subject, q.Version))
	case "versions":
		return client.SubjectVersions(ctx, q.Subject)
	case "subjects":
		return client.Subjects(ctx)
	case "subjects_of":
		return client.SubjectsByID(ctx, q.ID)
	case "versions_of":
		found, err := client.SchemaVersionsByID(ctx, q.ID)
		pairs := []any{}
		for _, each := range found {
			pairs = append(pairs, []any{each.Subject, each.Version})
		}
		return pairs, err
	case "referenced_by":
		found, err := client.SchemaReferences(ctx, q.Subject, q.Version)
		ids := []int{}
		for _, each := range found {
			ids = append(ids, each.ID)
		}
		return ids, err
	case "check":
		result, err := client.CheckCompatibility(ctx, q.Subject, -1, schema)
		return result.Is, err
	case "level":
		result := client.Compatibility(ctx, q.Subject)[0]
		return result.Level, result.Err
	case "set_level":
		var level sr.CompatibilityLevel
		if err := level.UnmarshalText([]byte(q.Level)); err != nil {
			return nil, err
		}
		result := client.SetCompatibility(ctx, sr.SetCompatibility{Level: level}, q.Subject)[0]
		return result.Level, result.Err
	case "mode":
		result := client.Mode(ctx, q.Subject)[0]
		return result.Mode, result.Err
	case "set_mode":
		var mode sr.Mode
		if err := mode.UnmarshalText([]byte(q.Mode)); err != nil {
			return nil, err
		}
		result := client.SetMode(ctx, mode, q.Subject)[0]
		return result.Mode, result.Err
	case "delete_version":
		return q.Version, client.DeleteSchema(ctx, q.Subject, q.Version, how)
	case "delete_subject":
		return client.DeleteSubject(ctx, q.Subject, how)
	case "contexts":
		return client.Contexts(ctx)
	case "write":
		return write(ctx, q, schema)
	case "read":
		return read(ctx, q.Data)
	}
	return nil, fmt.Errorf("%s is not known", q.Call)
}

func version(found sr.SubjectSchema, err error) (any, error) {
	return map[string]any{"id": found.ID, "version": found.Version, "schema": found.Schema.Schema}, err
}

func write(ctx context.Context, q asked, schema sr.Schema) (any, error) {
	id, err := client.RegisterSchema(ctx, q.Topic+"-value", schema, -1, -1)
	if err != nil {
		return nil, err
	}
	parsed, err := avro.ParseWithCache(q.Schema, "", &avro.SchemaCache{})
	if err != nil {
		return nil, err
	}
	value := shaped(parsed, q.Value)
	encode := func(v any) ([]byte, error) { return avro.Marshal(parsed, v) }
	data, err := sr.Encode(value, new(sr.ConfluentHeader), id, nil, encode)
	return hex.EncodeToString(data), err
}

func read(ctx context.Context, text string) (any, error) {
	data, err := hex.DecodeString(text)
	if err != nil {
		return nil, err
	}
	id, rest, err := new(sr.ConfluentHeader).DecodeID(data)
	if err != nil {
		return nil, err
	}
	schema, err := client.SchemaTextByID(ctx, id)
	if err != nil {
		return nil, err
	}
	parsed, err := avro.ParseWithCache(schema, "", &avro.SchemaCache{})
	if err != nil {
		return nil, err
	}
	var value any
	err = avro.Unmarshal(parsed, rest, &value)
	return value, err
}

// JSON has one kind of number; Avro's long and int want their own.
func shaped(schema avro.Schema, value any) any {
	switch known := schema.(type) {
	case *avro.RecordSchema:
		for _, field := range known.Fields() {
			values := value.(map[string]any)
			values[field.Name()] = shaped(field.Type(), values[field.Name()])
		}
	case *avro.UnionSchema:
		for _, branch := range known.Types() {
			if branch.Type() != avro.Null && value != nil {
				return shaped(branch, value)
			}
		}
	case *avro.ArraySchema:
		values := value.([]any)
		for i := range values {
			values[i] = shaped(known.Items(), values[i])
		}
	case *avro.PrimitiveSchema:
		if number, is := value.(float64); is && known.Type() == avro.Long {
			return int64(number)
		} else if is && known.Type() == avro.Int {
			return int(number)
		}
	}
	return value
}
