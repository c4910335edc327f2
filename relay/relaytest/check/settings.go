package check

import (
	"fmt"
	"reflect"
)

// Leaves returns the values in a struct by their path, which begins with a name. It follows pointers to structs, and
// omits the unexported fields of a type Config. Of a slice of structs, it has the length and the elements; of a function
// or an interface, only whether it is nil.
func Leaves(name string, value any) map[string]string {
	leaves := map[string]string{}
	addLeaves(leaves, name, reflect.ValueOf(value))
	return leaves
}

// addLeaves adds the values below v by their path.
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
