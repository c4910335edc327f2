package config

import (
	"fmt"
	"strings"

	"github.com/xdstender/tender/relay/humanize"
)

// A RequiredResource is a resource whose removal waits for an operator. Its text form is cds:ext-authz.
type RequiredResource struct{ Type, Name string } // type URL, and name

// String returns the text.
func (r RequiredResource) String() string { return typeText(r.Type) + ":" + r.Name }

// Required is a list of resources whose removal waits for an operator.
type Required []RequiredResource

// MarshalText returns the text, separated by commas.
func (all Required) MarshalText() ([]byte, error) { return listText(all, RequiredResource.String) }

// Reports returns a function that reports whether a resource of a type is in the list; nil for an empty list.
func (all Required) Reports() func(typeURL, name string) bool {
	if len(all) == 0 {
		return nil
	}
	listed := make(map[RequiredResource]bool, len(all))
	for _, one := range all {
		listed[one] = true
	}
	return func(typeURL, name string) bool { return listed[RequiredResource{typeURL, name}] }
}

// EnvDecode reads resources, separated by commas.
func (all *Required) EnvDecode(raw string) error {
	return decodeList(all, ",", raw, parseRequired, nil)
}

// parseRequired reads type:name.
func parseRequired(item string) (r RequiredResource, err error) {
	typ, name, ok := strings.Cut(item, ":")
	if !ok {
		return r, fmt.Errorf("%s is not a type and a name, such as cds:ext-authz", humanize.Quote(item))
	}
	r.Name = strings.TrimSpace(name)
	if r.Type, err = parseType(strings.TrimSpace(typ)); r.Name == "" {
		err = join(err, fmt.Errorf("%s has no name", humanize.Quote(item)))
	}
	return r, err
}
