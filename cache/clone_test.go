package cache

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/xdstender/tender/cache/wire"
)

// TestB35_KeptNamesAreCopies: a name that the view stores does not keep the memory of its request alive.
func TestB35_KeptNamesAreCopies(t *testing.T) {
	view, _ := New(Config{})
	request := strings.Repeat("name-", 1000)
	names := view.Watch().Subscribe(wire.EndpointType, []string{request[5:10]})
	kept := uintptr(unsafe.Pointer(unsafe.StringData(names[0].String())))
	if first := uintptr(unsafe.Pointer(unsafe.StringData(request))); kept >= first && kept < first+uintptr(len(request)) {
		t.Error("the name shares memory with the request")
	}
}
