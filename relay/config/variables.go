package config

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// A variable is a field of Config or Access. The type of the field decodes its value. Its tags are:
//
//   - env: the name and the default, or the prefix of the variables of a struct, in the syntax of envconfig
//   - oneof: the values of an enumeration, which ignores case
//   - range: the bounds of a number, both of which are allowed
//   - zero: the word for the zero value
//   - secret: errors do not quote the value
type variable struct {
	name   string   // without TENDER_
	text            // of the variable of the primary origin, for those of further origins
	fields []string // the names of the field and of the struct that contains it, from the outermost
	typ    reflect.Type
	preset string   // the default; empty for the zero value
	words  []string // of an enumeration or a switch
	bounds []string // the minimum and the maximum of a number
	zero   string
	secret bool
}

// newVariable returns the variable of a field.
func newVariable(t text, fields []string, field reflect.StructField) variable {
	_, preset, _ := strings.Cut(field.Tag.Get("env"), "default=")
	v := variable{
		name: t.name, text: t, fields: fields, typ: field.Type, preset: preset,
		zero: field.Tag.Get("zero"), secret: field.Tag.Get("secret") == "true",
	}
	if words := field.Tag.Get("oneof"); words != "" {
		v.words = strings.Split(words, ",")
	} else if field.Type.Kind() == reflect.Bool {
		v.words = []string{"on", "off"}
	}
	if bounds := field.Tag.Get("range"); bounds != "" {
		v.bounds = strings.Split(bounds, ",")
	}
	return v
}

// walk calls visit for each field of a struct, and of the structs in it, that has a variable. The names of all variables
// have a prefix. fields are the names of the field and of the struct that contains it.
func walk(of reflect.Value, prefix string, fields []string,
	visit func(name string, fields []string, field reflect.StructField, value reflect.Value),
) {
	for field, value := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("env"), ",")
		path := append(slices.Clip(fields), field.Name)
		if nested, ok := strings.CutPrefix(options, "prefix="); ok {
			walk(value, prefix+nested, path, visit)
		} else if name != "" {
			visit(prefix+name, path, field, value)
		}
	}
}

// variables are all variables, in the order of their texts.
var variables = func() (all []variable) {
	byName := map[string]variable{}
	walk(reflect.ValueOf(Config{}), "", nil,
		func(name string, fields []string, field reflect.StructField, _ reflect.Value) {
			byName[name] = newVariable(text{name: name}, fields, field)
		})
	for _, s := range sections {
		for _, t := range s.texts {
			v := byName[t.name]
			v.text = t
			all = append(all, v)
		}
	}
	return all
}()

// variablesOf returns the variables of a configuration: all, and then the Access variables of the further origins.
func variablesOf(origins Origins) []variable {
	all := slices.Clip(variables)
	for _, o := range origins {
		for _, name := range accessNames {
			v := *find(variables, accessPrefix(PrimaryOrigin)+name)
			v.name = accessPrefix(o.Name) + name
			v.meaning = fmt.Sprintf("For the origin %s, as `TENDER_ORIGIN_%s`", o.Name, name)
			all = append(all, v)
		}
	}
	return all
}

// find returns the variable of a name, which must exist.
func find(all []variable, name string) *variable {
	i := slices.IndexFunc(all, func(v variable) bool { return v.name == name })
	return &all[i]
}

// decode returns the configuration of an environment. It adds each value that cannot be decoded to refused, whose variables
// count as unset, so they have their defaults.
func decode(env map[string]string, refused refusals) (c Config) {
	var last string // the variable that is decoded
	lookup := envconfig.LookuperFunc(func(name string) (string, bool) {
		last = name
		if value := strings.TrimSpace(env[name]); !refused.has(name) {
			return value, value != ""
		}
		return "", false
	})
	for {
		c = Config{}
		err := process(&c, "", variables, lookup)
		all := variablesOf(c.Origins)
		for i := 0; i < len(c.Origins) && err == nil; i++ {
			err = process(&c.Origins[i].Access, accessPrefix(c.Origins[i].Name), all, lookup)
		}
		if err == nil {
			return c
		}
		if refused.has(last) {
			panic(fmt.Sprintf("config: default of %s%s: %v", prefix, last, err)) // a test reads all defaults
		}
		// envconfig stops at the first error, so decode again without this value.
		refused.add(last, find(all, last).cause(err))
	}
}

// process sets the fields of a struct, whose variables have a prefix.
func process(target any, prefix string, all []variable, lookup envconfig.Lookuper) error {
	check := func(_ context.Context, _, name, _, raw string) (string, bool, error) {
		value, err := find(all, name).check(raw)
		return value, false, err
	}
	return envconfig.ProcessWith(context.Background(), &envconfig.Config{
		Target: target, Lookuper: envconfig.PrefixLookuper(prefix, lookup), DefaultNoInit: true,
		Mutators: []envconfig.Mutator{envconfig.MutatorFunc(check)},
	})
}

// cause returns an error of envconfig without the names of fields that envconfig puts before it.
func (v *variable) cause(err error) error {
	for _, field := range v.fields {
		if inner := errors.Unwrap(err); inner != nil && err.Error() == field+": "+inner.Error() {
			err = inner
		}
	}
	return err
}

// check checks a value by the tags of the variable, and returns it in the form that the decoder of its type reads.
func (v *variable) check(raw string) (string, error) {
	word := strings.ToLower(raw)
	switch {
	case v.zero != "" && word == v.zero:
		return "", nil // is not decoded
	case v.words != nil && !slices.Contains(v.words, word):
		return "", errors.New("not an allowed value")
	case v.typ.Kind() == reflect.Bool:
		return strconv.FormatBool(word == "on"), nil
	case v.words != nil:
		return word, nil
	case v.bounds != nil:
		return v.checkBounds(raw)
	}
	return raw, nil
}

// checkBounds is check for a number.
func (v *variable) checkBounds(raw string) (string, error) {
	n, err := number(v.typ, raw)
	if err != nil {
		return "", err
	}
	low, high := "too small", "too large"
	if v.typ == reflect.TypeFor[time.Duration]() {
		low, high = "too short", "too long"
	}
	minimum, _ := number(v.typ, v.bounds[0]) // a test reads all bounds
	maximum, _ := number(v.typ, v.bounds[1])
	switch {
	case n < minimum:
		return "", errors.New(low)
	case n > maximum:
		return "", errors.New(high)
	case v.typ.Kind() == reflect.Int:
		return strconv.FormatInt(n, 10), nil // envconfig reads 010 as octal
	}
	return raw, nil
}

// number reads a number of a type with bounds.
func number(typ reflect.Type, raw string) (int64, error) {
	switch typ {
	case reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(raw)
		if err != nil {
			return 0, errors.New("not a duration")
		}
		return int64(d), nil
	case reflect.TypeFor[Size]():
		var s Size
		err := s.UnmarshalText([]byte(raw))
		return int64(s), err
	}
	n, err := strconv.ParseInt(raw, 10, 64) // out of range, n is the nearest number
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, errors.New("not a whole number")
	}
	return n, nil
}

// syntaxes describes the values of a type. Numbers, enumerations and switches are described by their tags.
var syntaxes = map[reflect.Type]string{
	reflect.TypeFor[Addresses](): "`:port`, `host:port`, `unix:/path`, several separated by commas; no two addresses of " +
		"the relay may overlap, as `:port` and `host:port` do",
	reflect.TypeFor[CheckURL](): "an `http` or `https` URL, which may have a user and a password",
	reflect.TypeFor[Headers]():  "`name=value`, several separated by `;`: names of gRPC metadata, values of printable ASCII",
	reflect.TypeFor[Locality](): "`region`, `region/zone` or `region/zone/sub_zone`",
	reflect.TypeFor[Metadata](): "a JSON object",
	reflect.TypeFor[NodeFields](): "a list of `id`, `cluster`, `user_agent_name`, `user_agent_version` (the major number), " +
		"`locality.region`, `locality.zone`, `locality.sub_zone`, `metadata.<path>`",
	reflect.TypeFor[Origins](): "`name=target`, several separated by `;`, at most 31, each target as for `TENDER_ORIGIN`; " +
		"names of `a-z`, `0-9` and `-` except `default`",
	reflect.TypeFor[Path]():        "a path",
	reflect.TypeFor[Patterns]():    "names of clusters, separated by commas, in which `*` stands for any characters",
	reflect.TypeFor[PeerTargets](): "`host:port` or `dns:///host:port`, at most 100, separated by commas",
	reflect.TypeFor[PushIntervals](): "`type=interval`, several separated by commas: a short name (`lds`, `cds`, `eds`, " +
		"…), a type URL, or `*` for all others except `eds` and `leds`; intervals from 10ms to 10s",
	reflect.TypeFor[Required](): "`type:name`, several separated by commas: a short name (`lds`, `cds`, …) or a type URL, " +
		"and the name of a resource",
	reflect.TypeFor[rollout.Stages](): "one to four stages, separated by commas, each of them clients and a time. " +
		"Clients: a share such as `5%`, which includes earlier stages, or `id`, `cluster`, `locality.region`, " +
		"`locality.zone`, `locality.sub_zone` or `metadata.<path>`, `=` and a glob. Time: a duration from 1s to 168h, or " +
		"`approve`",
	reflect.TypeFor[Routes](): "`type:<type>=name`, `authority:<authority>=name`, several separated by `;`: a short name or " +
		"a type URL; an xdstp authority in canonical form, or `*` for all others; a name of `TENDER_ORIGINS`, each of " +
		"which needs a route, or `default`",
	reflect.TypeFor[ServerName](): "a DNS name, an IP address, or a SPIFFE ID with a path",
	reflect.TypeFor[StagedTypes](): "short names (`lds`, `cds`, `eds`, …) or type URLs, separated by commas; not `eds`, " +
		"`leds` and `sds`",
	reflect.TypeFor[Targets](): "`host:port`, `dns:///host:port`, `unix:///path`, several separated by commas, or one " +
		"`file:///dir`",
	reflect.TypeFor[Text](): "printable text of at most 4KiB",
	reflect.TypeFor[TrustDomains](): "`domain` or `domain=path`, several separated by `;`, with `TENDER_TLS_CLIENT_CA`: a " +
		"SPIFFE trust domain such as `example.org`, and a path",
	reflect.TypeFor[WildcardTypes](): "short names (`lds`, `cds`, `eds`, …) or type URLs, separated by commas",
}

// allowed describes the allowed values.
func (v *variable) allowed() (described string) {
	if v.zero != "" {
		described = "`" + v.zero + "`, or "
	}
	switch {
	case v.words != nil:
		last := len(v.words) - 1
		described += "`" + strings.Join(v.words[:last], "`, `") + "` or `" + v.words[last] + "`"
	case v.bounds == nil:
		described += syntaxes[v.typ]
	case v.typ == reflect.TypeFor[time.Duration]():
		described += fmt.Sprintf("a duration from %s to %s, such as `90s` or `1m30s`", v.bounds[0], v.bounds[1])
	case v.typ == reflect.TypeFor[Size]():
		described += fmt.Sprintf("a size from %s to %s, in B, KiB, MiB or GiB", v.bounds[0], v.bounds[1])
	default:
		described += fmt.Sprintf("a whole number from %s to %s", v.bounds[0], v.bounds[1])
	}
	for end, names := range needs {
		if slices.Contains(names, v.text.name) {
			described += end // of one text at most
		}
	}
	return described
}

// invalid returns the error for a value that is refused for some reasons. The text quotes the value, which may contain
// control characters, and masks it if it is secret.
func (v *variable) invalid(raw string, reasons ...refusal) *Error {
	e := &Error{Variables: []string{prefix + v.name}, cause: reasons[0].cause}
	var causes []error
	for _, r := range reasons {
		causes = append(causes, r.cause)
		for _, name := range r.with {
			name, _, _ = strings.Cut(name, "=") // a requirement may have a value
			if name = prefix + name; !slices.Contains(e.Variables, name) {
				e.Variables = append(e.Variables, name)
			}
		}
	}
	e.Message = fmt.Sprintf("%v; allowed: %s", join(causes...), plain(v.allowed()))
	quoted := humanize.Quote(raw)
	if v.masks(raw) {
		quoted = masked
	}
	e.text = fmt.Sprintf("%s%s=%s: %s", prefix, v.name, quoted, e.Message)
	return e
}

// masked replaces a value that may be a secret.
const masked = "…"

// masks reports whether a refused value is not shown, because it may be a secret.
func (v *variable) masks(raw string) bool { return v.secret && raw != "" }
