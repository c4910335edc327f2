package h2

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Messages assembles gRPC messages from DATA frames. It does not copy a message that
// lies in one frame. The zero value is ready.
type Messages struct {
	part []byte // the start of an incomplete message, with its header; empty between messages
}

// ErrCompressed reports a compressed message. The package does not support compression.
var ErrCompressed = errors.New("compressed message")

// Read calls message for each message that ends in data. The argument is valid until
// message returns. Read stops at the first error and returns it.
func (m *Messages) Read(data []byte, message func([]byte) error) error {
	for len(data) > 0 {
		if len(m.part) > 0 {
			rest, err := m.goOn(data, message)
			if err != nil {
				return err
			}
			data = rest
			continue
		}
		need, err := length(data)
		if err != nil {
			return err
		}
		if need == 0 || len(data) < need {
			m.start(data, need)
			return nil
		}
		if err := message(data[MessageHeaderBytes:need]); err != nil {
			return err
		}
		data = data[need:]
	}
	return nil
}

// goOn appends data to the incomplete message, up to its end, and returns the rest.
func (m *Messages) goOn(data []byte, message func([]byte) error) (rest []byte, err error) {
	n, err := m.missing(len(data))
	if err != nil {
		return nil, err
	}
	m.part = append(m.part, data[:n]...)
	need, err := length(m.part)
	if err == nil && need > 0 && len(m.part) == need {
		err = m.finish(message)
	}
	return data[n:], err
}

// start keeps the first bytes of a message. need is its length with the header, or 0 if not known yet.
func (m *Messages) start(data []byte, need int) {
	if cap(m.part) < need {
		m.part = make([]byte, 0, need)
	}
	m.part = append(m.part[:0], data...)
}

// finish passes the complete message to message. It frees a large buffer, since many
// idle connections would each keep one.
func (m *Messages) finish(message func([]byte) error) error {
	whole := m.part
	m.part = m.part[:0]
	if cap(m.part) > maxFrame {
		m.part = nil
	}
	return message(whole[MessageHeaderBytes:])
}

// missing returns the number of the next n bytes that belong to the incomplete
// message.
func (m *Messages) missing(n int) (int, error) {
	need, err := length(m.part)
	if err != nil {
		return 0, err
	}
	if need == 0 {
		return min(n, MessageHeaderBytes-len(m.part)), nil
	}
	return min(n, need-len(m.part)), nil
}

// length returns the length of the message that b starts with, including its
// header, or 0 if b is shorter than a header.
func length(b []byte) (int, error) {
	if len(b) < MessageHeaderBytes {
		return 0, nil
	}
	if b[0] != 0 {
		return 0, fmt.Errorf("read message: %w", ErrCompressed)
	}
	return MessageHeaderBytes + int(binary.BigEndian.Uint32(b[1:])), nil
}
