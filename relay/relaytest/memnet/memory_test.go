package memnet

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A client finds a listener when it dials again, however long it has waited.
func TestNetwork_RefusesWhoWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Network
		if _, err := m.Dial(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without a listener: %v", err)
		}
		time.Sleep(refusesFor)
		waited := make(chan error, 1)
		go func() {
			_, err := m.Dial(t.Context())
			waited <- err
		}()
		synctest.Wait()
		l := m.Listen()
		if err := <-waited; !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the dial that waited: %v", err)
		}
		go func() {
			_, err := m.Dial(t.Context())
			waited <- err
		}()
		if _, err := l.Accept(); err != nil {
			t.Error(err)
		}
		if err := <-waited; err != nil {
			t.Errorf("the next dial: %v", err)
		}
	})
}
