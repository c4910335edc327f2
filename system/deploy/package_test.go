package deploy_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Flags that make packagetest sets: what it passed to deploy/package/build.sh. NFPM in the environment is the command.
var (
	packagesDir    = flag.String("packages", "", "the `directory` with the packages to test, as make packages writes it")
	packageVersion = flag.String("package.version", "", "the `version` of the packages")
	packageDate    = flag.String("package.date", "", "the `time` of the packages")
)

// packageFiles are the files and their modes that packages of both formats have, besides other manual pages.
var packageFiles = []string{
	"-rw------- /etc/tender/tender.env",
	"-rwxr-xr-x /usr/bin/tender",
	"-rw-r--r-- /usr/lib/systemd/system/tender.service",
	"-rw-r--r-- /usr/share/bash-completion/completions/tender",
	"-rw-r--r-- /usr/share/doc/tender/CHANGELOG.md",
	"-rw-r--r-- /usr/share/fish/vendor_completions.d/tender.fish",
	"-rw-r--r-- /usr/share/man/man1/tender-serve.1",
	"-rw-r--r-- /usr/share/man/man1/tender.1",
}

// otherPage matches the manual pages that packageFiles omits.
var otherPage = regexp.MustCompile(`^-rw-r--r-- /usr/share/man/man1/tender-[a-z-]*\.1$`)

// packageFile returns the package of a format for this platform.
func packageFile(t *testing.T, format string) string {
	t.Helper()
	name, err := filepath.Abs(filepath.Join(*packagesDir, "tender_"+*packageVersion+"_linux_"+runtime.GOARCH+"."+format))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// must runs a program, fails the test if it fails, and returns its output.
func must(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := run(t, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPackage_Deb checks the content of the deb package, installs it into an empty root, and runs it there. An upgrade and a
// removal keep the variables and the state of the relay, and a purge removes both.
func TestPackage_Deb(t *testing.T) {
	need(t)
	file, dir := packageFile(t, "deb"), t.TempDir()
	fields := strings.Split(strings.TrimSpace(must(t, "dpkg-deb", "--showformat=${Package}\n${Architecture}\n${Homepage}\n${Depends}\n${Recommends}\n", "--show", file)), "\n")
	if want := []string{"tender", runtime.GOARCH, "https://github.com/xdstender/tender", "", "ca-certificates"}; !slices.Equal(fields, want) {
		t.Errorf("the package has the fields %q, want %q", fields, want)
	}
	var files []string
	for line := range strings.Lines(must(t, "dpkg-deb", "--contents", file)) {
		if words := strings.Fields(line); words[1] != "root/root" {
			t.Errorf("a file does not belong to root: %s", line)
		} else if words[0][0] != 'd' {
			files = append(files, words[0]+" "+strings.TrimPrefix(words[len(words)-1], "."))
		}
	}
	checkFiles(t, files, "-rw-r--r-- /usr/share/doc/tender/copyright", "-rw-r--r-- /usr/share/zsh/vendor-completions/_tender")

	for _, database := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/private/tender"} {
		makeDir(t, filepath.Join(dir, database))
	}
	writeText(t, filepath.Join(dir, "var/lib/dpkg/status"), "")
	// The scripts run outside of the root, which has no shell, with DPKG_ROOT.
	dpkg := func(args ...string) {
		t.Helper()
		must(t, "dpkg", append([]string{"--root=" + dir, "--force-script-chrootless", "--force-bad-path", "--log=/dev/null"}, args...)...)
	}
	dpkg("--install", file)
	checkInstalled(t, dir)

	variables, state := filepath.Join(dir, "etc/tender/tender.env"), filepath.Join(dir, "var/lib/private/tender/snapshot")
	writeText(t, variables, "TENDER_ORIGIN=mine:1\n")
	writeText(t, state, "")
	dpkg("--install", file)
	dpkg("--remove", "tender")
	if got := readText(t, variables); got != "TENDER_ORIGIN=mine:1\n" {
		t.Errorf("after an upgrade and a removal, the variables are\n%s", got)
	}
	readText(t, state) // fails if there is none
	if _, err := os.Stat(filepath.Join(dir, "usr/bin/tender")); err == nil {
		t.Error("the program is still there after the removal")
	}
	dpkg("--purge", "tender")
	for _, name := range []string{variables, filepath.Dir(variables), state, filepath.Dir(state)} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s is still there after a purge", name)
		}
	}
}

// TestPackage_Rpm does with the rpm package what TestPackage_Deb does with the other. rpm has no purge: a removal keeps
// changed variables under another name.
func TestPackage_Rpm(t *testing.T) {
	need(t)
	file, dir := packageFile(t, "rpm"), t.TempDir()
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if got, want := must(t, "rpm", "-qp", "--queryformat", "%{NAME} %{ARCH} %{LICENSE} %{URL}", file), "tender "+arch+" Apache-2.0 https://github.com/xdstender/tender"; got != want {
		t.Errorf("the package is %q, want %q", got, want)
	}
	if got := must(t, "rpm", "--checksig", file); !strings.Contains(got, "digests OK") {
		t.Errorf("rpm --checksig: %s", got)
	}
	var files []string
	for line := range strings.Lines(must(t, "rpm", "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\n]", file)) {
		if line[0] != 'd' {
			files = append(files, strings.TrimSpace(line))
		}
	}
	checkFiles(t, files, "-rw-r--r-- /usr/share/licenses/tender/LICENSE", "-rw-r--r-- /usr/share/zsh/site-functions/_tender")

	if flags := must(t, "rpm", "-qp", "--queryformat", "[%{FILENAMES}=%{FILEFLAGS:fflags}\n]", file); !strings.Contains(flags, "/etc/tender/tender.env=cn\n") {
		t.Errorf("tender.env is not a file of configuration that an upgrade keeps (cn):\n%s", flags)
	}

	rpm := func(args ...string) {
		t.Helper()
		// rpm enters the root to run scripts, and the root has no shell.
		must(t, "rpm", append([]string{"--root=" + dir, "--dbpath=/var/lib/rpm", "--nodeps", "--noscripts"}, args...)...)
	}
	rpm("--install", file)
	rpm("--verify", "tender")
	checkInstalled(t, dir)

	variables := filepath.Join(dir, "etc/tender/tender.env")
	writeText(t, variables, "TENDER_ORIGIN=mine:1\n")
	rpm("--upgrade", "--replacepkgs", file)
	if got := readText(t, variables); got != "TENDER_ORIGIN=mine:1\n" {
		t.Errorf("after an upgrade, the variables are\n%s", got)
	}
	rpm("--erase", "tender")
	if got := readText(t, variables+".rpmsave"); got != "TENDER_ORIGIN=mine:1\n" {
		t.Errorf("after a removal, the variables are\n%s", got)
	}
	checkScripts(t, file)
}

// checkScripts runs the scripts of the rpm package as rpm does, on a host without systemd: they must parse, and succeed.
func checkScripts(t *testing.T, file string) {
	t.Helper()
	for tag, argument := range map[string]string{"POSTIN": "1", "PREUN": "0", "POSTUN": "0"} {
		name := filepath.Join(t.TempDir(), "script")
		writeText(t, name, must(t, "rpm", "-qp", "--queryformat", "%{"+tag+"}", file))
		cmd := exec.CommandContext(t.Context(), "sh", name, argument)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "DPKG_ROOT=" + t.TempDir()} // so that nothing happens to the host of the test
		if out, err := cmd.CombinedOutput(); err != nil || len(readText(t, name)) < 100 {
			t.Errorf("script %s: %v\n%s", tag, err, out)
		}
	}
}

// checkFiles checks the files of a package. others are those that packages of the other format do not have.
func checkFiles(t *testing.T, files []string, others ...string) {
	t.Helper()
	want := append(slices.Clone(packageFiles), others...)
	files = slices.DeleteFunc(files, func(file string) bool { return otherPage.MatchString(file) && !slices.Contains(want, file) })
	slices.Sort(files)
	slices.Sort(want)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files of the package (-want +got):\n%s", diff)
	}
}

// checkInstalled checks what a package has installed into a root: the program, which accepts the variables, and the unit.
func checkInstalled(t *testing.T, dir string) {
	t.Helper()
	program := filepath.Join(dir, "usr/bin/tender")
	if got := must(t, program, "--version"); !strings.HasPrefix(got, "tender "+*packageVersion+" (commit ") || strings.Contains(got, "unknown") {
		t.Errorf("tender --version prints %s, want %s, its commit and its date", got, *packageVersion)
	}
	variables := filepath.Join(dir, "etc/tender/tender.env")
	if got := readText(t, variables); got != readText(t, unitDir+"tender.env") {
		t.Errorf("the variables are not those of the repository:\n%s", got)
	}
	check := regexp.MustCompile(`(?m)^#\t(.*)$`).FindStringSubmatch(readText(t, variables))
	if check == nil {
		t.Fatal("tender.env has no recipe")
	}
	recipe := strings.NewReplacer("/etc/tender/tender.env", variables, "exec tender", "exec "+program).Replace(check[1])
	if got := must(t, "sh", "-ec", recipe); !strings.Contains(got, "control-plane.example:18000") {
		t.Errorf("%s\nprints\n%s\nwithout the control plane of tender.env", recipe, got)
	}
	unit := readText(t, filepath.Join(dir, "usr/lib/systemd/system/tender.service"))
	if want := strings.Replace(readText(t, unitDir+"tender.service"), "ExecStart=/usr/local/bin/tender ", "ExecStart=/usr/bin/tender ", 1); unit != want {
		t.Errorf("the unit differs from that of the repository (-want +got):\n%s", cmp.Diff(want, unit))
	}
	checkUnit(t, unit, program)
}

// TestPackage_IsReproducible builds the packages once more, elsewhere and with another umask, time zone and times of the
// files, and compares all bytes.
func TestPackage_IsReproducible(t *testing.T) {
	need(t)
	dir := t.TempDir()
	for copied, original := range map[string]string{"program": root + "/bin/linux_" + runtime.GOARCH + "/tender", "share": root + "/bin/share.tar.gz"} {
		writeText(t, filepath.Join(dir, copied), readText(t, original))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", `umask 077; exec "$@"`, "sh", root+"/deploy/package/build.sh",
		filepath.Join(dir, "program"), runtime.GOARCH, *packageVersion, *packageDate, filepath.Join(dir, "share"), filepath.Join(dir, "again"))
	cmd.Env = append(os.Environ(), "TZ=Asia/Kathmandu", "LC_ALL=C", "TMPDIR="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, format := range []string{"deb", "rpm"} {
		if one, another := readText(t, packageFile(t, format)), readText(t, filepath.Join(dir, "again."+format)); one != another {
			t.Errorf("two builds of the %s package differ: %d and %d bytes", format, len(one), len(another))
		}
	}
}

// writeText writes a file that only its owner may read.
func writeText(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// makeDir makes a directory and those above it.
func makeDir(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(name, 0o755); err != nil {
		t.Fatal(err)
	}
}
