package check

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Settings describes how the fields of a configuration C set fields of other configurations.
type Settings[C any] struct {
	// Base has values for which Configured uses all fields. A slice of structs has an element.
	Base C

	// Others has a value that differs from Base, for fields whose type or meaning requires a certain one.
	Others map[string]any

	// Configured returns the other configurations by name.
	Configured func(*C) map[string]any
}

// HandedOver returns, for each exported field of C, the paths of the values that change with it, separated by spaces. A
// path begins with the name of a configuration. unset are the paths of values that no field changes, sorted.
func (s Settings[C]) HandedOver(t T) (fields map[string]string, unset []string) {
	t.Helper()
	before, changed := s.leaves(&s.Base), map[string]bool{}
	fields = map[string]string{}
	i := 0
	for field := range reflect.TypeFor[C]().Fields() {
		if i++; !field.IsExported() {
			continue
		}
		cfg := s.Base
		s.change(t, reflect.ValueOf(&cfg).Elem().FieldByIndex(field.Index), field.Name, i)
		var paths []string
		after := s.leaves(&cfg)
		for path := range before {
			if before[path] != after[path] {
				changed[path] = true
				paths = append(paths, path)
			}
		}
		slices.Sort(paths)
		fields[field.Name] = strings.Join(paths, " ")
	}
	for path := range before {
		if !changed[path] {
			unset = append(unset, path)
		}
	}
	slices.Sort(unset)
	return fields, unset
}

// change sets a field to another value than that of Base. The value contains n, so that fields differ.
func (s Settings[C]) change(t T, field reflect.Value, name string, n int) {
	t.Helper()
	other, listed := s.Others[name]
	switch {
	case listed:
		field.Set(reflect.ValueOf(other))
	case field.Kind() == reflect.Bool:
		field.SetBool(!field.Bool())
	case field.CanInt():
		field.SetInt(field.Int() + 1000 + int64(n))
	case field.Kind() == reflect.String:
		field.SetString(fmt.Sprint("other-", n))
	case field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.String:
		field.Set(reflect.ValueOf([]string{fmt.Sprint("other-", n)}).Convert(field.Type()))
	default:
		t.Fatal(fmt.Sprintf("Others has no value of %s, of type %s", name, field.Type()))
	}
}

// leaves returns the values of all configurations by their path.
func (s Settings[C]) leaves(cfg *C) map[string]string {
	leaves := map[string]string{}
	for name, value := range s.Configured(cfg) {
		addLeaves(leaves, name, reflect.ValueOf(value))
	}
	return leaves
}

// addLeaves adds the values below v by their path. It follows pointers to structs, and omits the unexported fields of a
// type Config. Of a slice of structs, it adds the length and the elements; of a function or an interface, only whether it
// is nil.
func addLeaves(leaves map[string]string, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		addFields(leaves, path, v)
	case reflect.Pointer:
		if v.IsNil() || v.Elem().Kind() != reflect.Struct {
			leaves[path] = fmt.Sprint(v.IsNil())
			return
		}
		addLeaves(leaves, path, v.Elem())
	case reflect.Slice:
		if leaves[path] = fmt.Sprint(v); v.Type().Elem().Kind() == reflect.Struct {
			leaves[path] = fmt.Sprint(v.Len())
			for i := range v.Len() {
				addLeaves(leaves, fmt.Sprint(path, ".", i), v.Index(i))
			}
		}
	case reflect.Func, reflect.Interface, reflect.UnsafePointer:
		leaves[path] = fmt.Sprint(v.IsNil())
	default:
		leaves[path] = fmt.Sprint(v)
	}
}

// addFields is addLeaves for the fields of a struct.
func addFields(leaves map[string]string, path string, v reflect.Value) {
	for field, value := range v.Fields() {
		switch {
		case field.Anonymous:
			addLeaves(leaves, path, value)
		case field.IsExported() || v.Type().Name() != "Config":
			addLeaves(leaves, path+"."+field.Name, value)
		}
	}
}
