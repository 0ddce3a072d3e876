// franz-go's usual programs behind a pipe. programs/piped.py describes commands and answers,
// programs/records.py the records.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const silenceMax = 30 * time.Second

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() {
	commands := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	for commands.Scan() {
		if err := obey(strings.Fields(commands.Text()), out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func obey(words []string, out *bufio.Writer) error {
	count, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return err
	}
	if words[0] == "produce" {
		err = produce(words[1], words[2], words[3], words[4], count)
	} else {
		err = consume(words[1], words[2], words[3], count, out)
	}
	if err != nil {
		return err
	}
	out.Write([]byte{0, 0, 0, 0})
	return out.Flush()
}

func produce(server, topic, codec, acks string, count int) error {
	client, err := kgo.NewClient(append(acknowledged(acks),
		kgo.SeedBrokers(server),
		kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(codecs[codec]),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	var once sync.Once
	var failed error
	for index := range count {
		client.Produce(context.Background(), record(index), func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	return failed
}

// The client is idempotent by default, which needs acks=all. Other acks must disable it.
func acknowledged(acks string) []kgo.Opt {
	switch acks {
	case "0":
		return []kgo.Opt{kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()}
	case "1":
		return []kgo.Opt{kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()}
	default:
		return []kgo.Opt{kgo.RequiredAcks(kgo.AllISRAcks())}
	}
}

func consume(server, topic, group string, count int, out *bufio.Writer) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(server),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for read := 0; read < count; {
		fetches, err := poll(client)
		if err != nil {
			return fmt.Errorf("after %d records: %w", read, err)
		}
		fetches.EachRecord(func(record *kgo.Record) { put(out, record) })
		read += fetches.NumRecords()
	}
	return nil
}

func poll(client *kgo.Client) (kgo.Fetches, error) {
	soon, cancel := context.WithTimeout(context.Background(), silenceMax)
	defer cancel()
	fetches := client.PollFetches(soon)
	return fetches, fetches.Err()
}

func record(index int) *kgo.Record {
	made := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "index", Value: []byte(strconv.Itoa(index))}}}
	if index%10 != 9 {
		made.Key = []byte("key-" + strconv.Itoa(index%5003))
	}
	if index%100 != 50 {
		made.Value = value(index)
	}
	if index%3 == 0 {
		made.Headers = append(made.Headers, kgo.RecordHeader{Key: "empty", Value: []byte{}})
	}
	return made
}

func value(index int) []byte {
	size := index * 37 % 200
	if index%1000 == 999 {
		size = 10_000
	}
	made := binary.BigEndian.AppendUint64(make([]byte, 0, 8+size), uint64(index))
	for place := range size {
		made = append(made, byte(index+place))
	}
	return made
}

func put(out *bufio.Writer, record *kgo.Record) {
	frame := binary.BigEndian.AppendUint32(nil, uint32(record.Partition))
	frame = binary.BigEndian.AppendUint64(frame, uint64(record.Offset))
	frame = appendBytes(appendBytes(frame, record.Key), record.Value)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(record.Headers)))
	for _, header := range record.Headers {
		frame = appendBytes(appendBytes(frame, []byte(header.Key)), header.Value)
	}
	out.Write(binary.BigEndian.AppendUint32(nil, uint32(len(frame))))
	out.Write(frame)
}

// appendBytes appends a length and the bytes; nil ones have the length -1.
func appendBytes(frame, bytes []byte) []byte {
	length := int32(len(bytes))
	if bytes == nil {
		length = -1
	}
	return append(binary.BigEndian.AppendUint32(frame, uint32(length)), bytes...)
}
