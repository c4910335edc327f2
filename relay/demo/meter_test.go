package demo

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestSlots(t *testing.T) {
	for _, n := range []uint64{0, 1, 31, 32, 33, 63, 64, 1000, 123_456_789, math.MaxInt64} {
		got := float64(middle(slotOf(n)))
		if diff := math.Abs(got - float64(n)); diff > float64(n)/50 {
			t.Errorf("%d is counted as %.0f, more than 2%% away", n, got)
		}
	}
	for n := uint64(1); n < 1<<16; n++ {
		if a, b := slotOf(n-1), slotOf(n); b < a || b > a+1 {
			t.Fatalf("slots of %d and %d are %d and %d, want the same or the next", n-1, n, a, b)
		}
	}
}

func TestPercentiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var h histogram
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(random.ExpFloat64() * float64(5*time.Millisecond))
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	for _, p := range []float64{1, 50, 90, 99, 99.9, 100} {
		want := all[int(math.Ceil(p/100*float64(len(all))))-1]
		got, ok := h.now().percentile(p)
		if !ok || math.Abs(float64(got-want)) > float64(want)/50 {
			t.Errorf("percentile %g is %v, %v, want %v to within 2%%", p, got, ok, want)
		}
	}
	if got := time.Duration(h.most.Load()); got != all[len(all)-1] {
		t.Errorf("the longest is %v, want %v", got, all[len(all)-1])
	}
	before := h.now()
	if _, ok := before.since(before).percentile(50); ok {
		t.Error("percentile of an empty distribution: ok = true, want false")
	}
	h.add(time.Hour)
	got, ok := h.now().since(before).percentile(50)
	if want := time.Hour; !ok || (got-want).Abs() > want/50 {
		t.Errorf("the median since then is %v, %v, want %v", got, ok, want)
	}
}

func TestMeterMeasuresWhatWasStamped(t *testing.T) {
	m := newMeter()
	start := time.Now()
	first, second := contentOf("t", "a", []byte("1")), contentOf("t", "a", []byte("2"))
	m.delivered(first, start.Add(time.Second)) // has no stamp: older than the first change
	m.stamp(start, second)
	m.delivered(second, start.Add(3*time.Millisecond))
	if got := m.deliveries.Load(); got != 1 {
		t.Errorf("%d deliveries are counted, want 1", got)
	}
	if got := time.Duration(m.delays.most.Load()); got != 3*time.Millisecond {
		t.Errorf("the delay is %v, want 3ms", got)
	}
	m.stamp(start.Add(stampAge), first)
	m.trim(start.Add(stampAge + 1))
	if _, kept := m.made[second]; kept || len(m.made) != 1 {
		t.Errorf("%d stamps after trim, want only that of the newer change", len(m.made))
	}
}

func TestContents(t *testing.T) {
	same := contentOf("t", "ab", []byte("c"))
	if same != contentOf("t", "ab", []byte("c")) {
		t.Error("equal resources have different contents")
	}
	for _, other := range []content{
		contentOf("u", "ab", []byte("c")), contentOf("t", "a", []byte("bc")), contentOf("t", "ab", []byte("d")), contentOf("t", "ab", nil),
	} {
		if other == same {
			t.Error("different resources have equal contents")
		}
	}
}
