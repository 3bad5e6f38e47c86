// Command heavyitems reads lines "reader,page,milliseconds" and writes lines "window start,at least so many users,page".
//
// It asks shh by Beam's expansion service (docs/other_languages.md).
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"reflect"
	"strconv"
	"strings"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/typex"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/textio"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/xlang/python"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/x/beamx"
)

var (
	visitsPath = flag.String("visits", "", "Lines reader,page,milliseconds since 1970")
	outputPath = flag.String("heavy_items", "", "Where the heavy items go")
	service    = flag.String("expansion_service", "", "host:port of the expansion service, of a Python in which shh is installed")
	plan       = flag.String("plan", "", "A file of `shh plan --output`")
	noiseKey   = flag.String("noise_key", "", "A private file of 32 random bytes")
)

// Visit is what goes in: a row with these fields.
type Visit struct {
	Reader string `beam:"reader"`
	Page   string `beam:"page"`
	At     int64  `beam:"at"`
}

// heavyItem is what comes out. It is another name of a type without a name, with the names of fields that Beam gives to rows of
// another language: as such they arrive. A field that is not in the mode of the plan is nil.
type heavyItem = struct {
	Stream         string  `beam:"stream"`
	Window_start   string  `beam:"window_start"`
	Window_end     string  `beam:"window_end"`
	Item           string  `beam:"item"`
	Zone           *string `beam:"zone"`
	Noisy_count    *int64  `beam:"noisy_count"`
	Level          *int64  `beam:"level"`
	At_least_users *int64  `beam:"at_least_users"`
	Epsilon_total  float64 `beam:"epsilon_total"`
	Delta          float64 `beam:"delta"`
	Epsilon_spent  float64 `beam:"epsilon_spent"`
}

// arguments of the transform, by name; there are none by place.
type arguments struct {
	Plan     string `beam:"plan"`
	NoiseKey string `beam:"noise_key"`
	User     string `beam:"user"`
	Item     string `beam:"item"`
	Time     string `beam:"time"`
	TimeUnit string `beam:"time_unit"`
}

type noArguments struct{}

func init() {
	register.Function2x1(visit)
	beam.RegisterFunction(line)
	beam.RegisterType(reflect.TypeFor[Visit]())
}

func visit(_ context.Context, text string) Visit {
	cells := strings.SplitN(text, ",", 3)
	at, err := strconv.ParseInt(cells[2], 10, 64)
	if err != nil {
		panic(err)
	}
	return Visit{cells[0], cells[1], at}
}

func line(found heavyItem) string {
	return fmt.Sprintf("%s,%d,%s", found.Window_start, *found.At_least_users, found.Item)
}

// heavyHitters is dp_transforms.HeavyHitterRows.
func heavyHitters(s beam.Scope, visits beam.PCollection) beam.PCollection {
	transform := python.NewExternalTransform[noArguments, arguments]("dp_transforms.HeavyHitterRows")
	transform.WithKwargs(arguments{*plan, *noiseKey, "reader", "page", "at", "ms"})
	found := beam.CrossLanguage(
		s.Scope("HeavyHitters"),
		"beam:transforms:python:fully_qualified_named",
		beam.CrossLanguagePayload(transform),
		*service,
		beam.UnnamedInput(visits),
		beam.UnnamedOutput(typex.New(reflect.TypeFor[heavyItem]())),
	)
	return found[beam.UnnamedOutputTag()]
}

func main() {
	flag.Parse()
	beam.Init()
	p, s := beam.NewPipelineWithRoot()
	lines := textio.Read(s, *visitsPath)
	found := heavyHitters(s, beam.ParDo(s, visit, lines))
	textio.Write(s, *outputPath, beam.ParDo(s, line, found))
	if err := beamx.Run(context.Background(), p); err != nil {
		log.Fatal(err)
	}
}
