package steptable

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// The folder of the table that is read, as a whole path: PHYSIM_TABLE=$PWD/tables/qwen3-14b go test
func folder(t *testing.T) string {
	found := os.Getenv("PHYSIM_TABLE")
	if found == "" {
		t.Skip("PHYSIM_TABLE names no folder")
	}
	return found
}

func TestLookUps(t *testing.T) {
	table, err := Load(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]float64
	if err := read(filepath.Join(folder(t), "look_ups.json"), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 10 {
		t.Fatalf("%d look-ups, not 10", len(rows))
	}
	for number, row := range rows {
		var query [4]float64
		for axis, name := range axisNames {
			query[axis] = row[name]
		}
		found := table.LookUp(query) + table.MorePrompts(row["prompts"], row["cached_tokens"])
		if math.Abs(found/row["step_us"]-1) > 1e-9 {
			t.Errorf("look-up %d: %g us, not %g", number, found, row["step_us"])
		}
	}
}

func TestSteps(t *testing.T) {
	table, err := Load(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	// Contexts of 600 and 1,000, and two prompts of 100 tokens: as many pairs as one of 200 after -50.
	found := table.Step([]float64{600, 1000}, []Chunk{{New: 100}, {New: 100}})
	wanted := table.LookUp([4]float64{2, 800, 200, -50}) + table.MorePrompts(2, 0)
	if math.Abs(found/wanted-1) > 1e-12 {
		t.Errorf("%g us, not %g", found, wanted)
	}
	if table.Outside.FrontEndS <= 0 {
		t.Errorf("front end of %g s", table.Outside.FrontEndS)
	}
}
