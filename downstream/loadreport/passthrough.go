package loadreport

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// passThrough forwards messages between the client and a stream of its own to the origin, until either ends.
func (s *stream) passThrough(ctx context.Context, first *message) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	origin, err := s.cfg.Origin.OpenLoads(ctx)
	if err != nil {
		return err
	}
	lost := make(chan error, 1)
	// Ends when either stream does, which is as soon as passThrough returns.
	go func() { lost <- s.answer(origin) }()
	if err := s.forward(ctx, origin, first.bytes); err != nil {
		return err
	}
	first.Release()
	for {
		select {
		case m := <-s.messages:
			err := s.forward(ctx, origin, m.bytes)
			m.Release()
			if err != nil {
				return err
			}
		case err := <-s.ended:
			if err != nil {
				return err
			}
			_ = origin.CloseSend() // an error means that the stream has ended, which lost reports
		case err := <-lost:
			return err
		case <-s.cfg.Draining:
			return errDraining
		case <-ctx.Done():
			return over(ctx)
		}
	}
}

// answer forwards the origin's responses, and returns how its stream ended.
func (s *stream) answer(origin grpc.ClientStream) error {
	for {
		m := new(wire.Message)
		if err := origin.RecvMsg(m); err != nil {
			return guard.ReceiveStatus(err)
		}
		if err := s.rpc.SendMsg(m); err != nil {
			return err
		}
		s.answered.Store(true)
	}
}

// forward forwards a message of the client. If the stream to the origin has ended, answer returns why, and forward no
// error.
func (s *stream) forward(ctx context.Context, origin grpc.ClientStream, m []byte) error {
	err := s.send(ctx, func() error { return origin.SendMsg(&wire.Message{Bytes: m}) })
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
