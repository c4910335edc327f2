package config

import (
	"fmt"
	"strings"
)

// readFormerNames copies the values of variables that are set under their former names to their current names. It
// returns an error, by variable, if both names are set to different values. No error quotes a value, which may be a
// secret.
func (c *Config) readFormerNames(env map[string]string) (invalid map[string]error) {
	invalid = map[string]error{}
	for i := range variables {
		v := &variables[i]
		former := strings.TrimSpace(env[v.formerName])
		if v.formerName == "" || former == "" {
			continue
		}
		switch strings.TrimSpace(env[v.name]) {
		case "", former:
			env[v.name], c.formerNames[v.name] = former, v.formerName
		default:
			invalid[v.name] = fmt.Errorf("%[1]s%[2]s, its former name, is set to another value; remove %[1]s%[2]s", prefix,
				v.formerName)
		}
	}
	return invalid
}

// A Renaming is a variable that is set under its former name.
type Renaming struct{ Former, Name string }

func (r Renaming) String() string {
	return fmt.Sprintf("%s has been renamed to %s; the next minor version rejects the former name", r.Former, r.Name)
}

// Renamings returns the variables that are set under their former names.
func (c *Config) Renamings() (all []Renaming) {
	for i := range variables {
		v := &variables[i]
		if former, ok := c.formerNames[v.name]; ok {
			all = append(all, Renaming{Former: prefix + former, Name: prefix + v.name})
		}
	}
	return all
}
