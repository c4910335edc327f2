package operator

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"sort"

	"github.com/xdstender/tender/relay/admin"
)

// pageOf returns the entries of a page, and the cursor of the next page; empty on the last page. It sorts the list by
// key. Keys must be unique.
func pageOf[T any](all []T, p admin.Page, key func(T) string) (page []T, next string, err error) {
	after, err := base64.RawURLEncoding.DecodeString(p.After)
	if err != nil {
		return nil, "", badCursor(p.After)
	}
	type keyed struct {
		key   string
		value T
	}
	list := make([]keyed, len(all))
	for i, value := range all {
		list[i] = keyed{key(value), value}
	}
	slices.SortFunc(list, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	if p.After != "" {
		list = list[sort.Search(len(list), func(i int) bool { return list[i].key > string(after) }):]
	}
	if len(list) > p.Limit {
		list = list[:p.Limit]
		if p.Limit > 0 {
			next = base64.RawURLEncoding.EncodeToString([]byte(list[p.Limit-1].key))
		}
	}
	page = make([]T, len(list))
	for i := range list {
		page[i] = list[i].value
	}
	return page, next, nil
}

// badCursor returns the error about an invalid cursor.
func badCursor(after string) error {
	return admin.Refuse(http.StatusBadRequest, fmt.Errorf("after=%.64s: want the next of the previous page", after))
}
