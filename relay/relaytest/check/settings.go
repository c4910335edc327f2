package check

import (
	"fmt"
	"io/fs"
	"reflect"
	"time"
)

// Leaves returns the values in a struct by their path, which begins with a name. It follows pointers to structs, and
// omits the unexported fields of a type Config. Of a slice of structs, it has the length and the elements; of a function,
// an interface or another pointer, only whether it is nil.
func Leaves(name string, value any) map[string]string {
	leaves := map[string]string{}
	addLeaves(leaves, name, reflect.ValueOf(value))
	return leaves
}

// addLeaves adds the values below v by their path.
func addLeaves(leaves map[string]string, path string, v reflect.Value) {
	switch v.Type() { // fmt does not use the String method of an unexported field
	case reflect.TypeFor[time.Duration]():
		leaves[path] = time.Duration(v.Int()).String()
		return
	case reflect.TypeFor[fs.FileMode]():
		leaves[path] = fs.FileMode(v.Uint()).String() //nolint:gosec // a FileMode has 32 bits
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		addFields(leaves, path, v)
	case reflect.Pointer:
		if v.IsNil() || v.Elem().Kind() != reflect.Struct {
			leaves[path] = presence(v)
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
		leaves[path] = presence(v)
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

// presence states whether a value is nil.
func presence(v reflect.Value) string {
	if v.IsNil() {
		return "nil"
	}
	return "not nil"
}
