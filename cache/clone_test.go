package cache

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/xdstender/tender/cache/wire"
)

// TestB35_KeptNamesAreCopies: a name that the view keeps does not keep the request that it came in.
func TestB35_KeptNamesAreCopies(t *testing.T) {
	view, _ := New(Config{})
	request := strings.Repeat("name-", 1000)
	names := view.Watch().Subscribe(wire.EndpointType, []string{request[5:10]})
	kept := uintptr(unsafe.Pointer(unsafe.StringData(names[0].String())))
	if first := uintptr(unsafe.Pointer(unsafe.StringData(request))); kept >= first && kept < first+uintptr(len(request)) {
		t.Error("the name is a part of the request")
	}
}
