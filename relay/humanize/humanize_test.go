package humanize

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSeconds(t *testing.T) {
	for n, want := range map[float64]string{
		-1: "0s", 0: "0s", 0.04: "0s", 0.42: "400ms", 9.94: "9.9s", 42: "42s", 200: "3m20s", 18060: "5h1m", 3 * 86400: "3d0h",
	} {
		if got := Seconds(n); got != want {
			t.Errorf("Seconds(%v) = %q, want %q", n, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 10 * time.Second: "10s", 10 * time.Minute: "10m", 20 * time.Hour: "20h", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s",
		1500 * time.Millisecond: "1.5s", -time.Hour: "-1h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1500: "1.5 KiB", 10239: "10 KiB", 50 << 20: "50 MiB", 1 << 50: "1024 TiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{{"abcdefghij", 5, "ab…ij"}, {"abc", 5, "abc"}, {"abcde", 5, "abcde"}, {"äöüß!", 4, "äö…!"}} {
		if got := Cut(tt.text, tt.most); got != tt.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", tt.text, tt.most, got, tt.want)
		}
	}
}

func TestWrap(t *testing.T) {
	long := strings.Repeat("word ", 40)
	for _, text := range []string{"short", long, "[a link](" + strings.Repeat("x", 150) + ") and " + long} {
		for _, indent := range [][2]string{{"", ""}, {"- ", "  "}, {"  - ", "    "}} {
			wrapped := Wrap(text, indent[0], indent[1])
			lines := strings.Split(strings.TrimSuffix(wrapped, "\n"), "\n")
			var words []string
			for i, line := range lines {
				rest, indented := strings.CutPrefix(line, indent[min(i, 1)])
				if !indented || len(line) > 118 && strings.Contains(rest, " ") {
					t.Errorf("line %d has %d bytes, wrong indentation: %t: %q", i+1, len(line), !indented, line)
				}
				words = append(words, strings.Fields(rest)...)
			}
			if !slices.Equal(words, strings.Fields(text)) || !strings.HasSuffix(wrapped, "\n") {
				t.Errorf("Wrap(%q) = %q, want the same words and a final newline", text, wrapped)
			}
		}
	}
}
