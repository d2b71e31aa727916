// choir bench collectives
#include <fmt/core.h>

#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"
#include "choir/deck/deck_layout.hpp"
#include "choir/lab/bench/bench_collectives.hpp"
#include "choir/train/step/run_setup.hpp"
#include "src/app/bench.hpp"

namespace choir {
namespace {

/// `words`: device=..., and what of parallel.* belongs to it.
int bench_collectives(MpiSession& session, const CollectiveBenchOptions& options,
                      const Arguments& words, const BenchFiles& files) {
  Deck deck;
  Layout layout;
  {
    const auto world = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    together(world->world(), [&] {
      // Heads and layers enough for any layout of so many ranks.
      const int n = session.size();
      deck = parse_deck(fmt::format(R"({{"device": "cpu", "data": {{"format": "synthetic"}},
                           "model": {{"vocab_size": 256, "n_layer": {0}, "n_head": {0},
                                      "n_embd": {1}, "ffn_width": {1}, "block_size": {1}}},
                           "train": {{"micro_batch_size": 1, "grad_accum": {0}}}}})",
                                    n, 32 * n),
                        "choir bench collectives", words);
      if (n == 1)
        throw DeckError("with one rank there is nothing to communicate",
                        "mpiexec -n 2 choir bench collectives");
      layout = layout_of(deck, n);
      if (session.rank() == 0) files.require_writable();
    });
  }
  Workplace place;
  place.mesh = Mesh::over_world(layout, mesh_options_of(deck));
  open_device(place, deck);
  CollectivesReport report{.device = place.device->description(),
                           .note = place.mesh->transport_note(),
                           .provenance = bench_provenance(*place.mesh, *place.device, "", words),
                           .ranks = session.size(),
                           .rows = bench_axes(*place.mesh, *place.device, options)};
  if (place.device->host_visible() && place.mesh->node().size() > 1)
    report.comparison = compare_all_reduce(*place.mesh, options);
  return finish_bench(session, files, report);
}

}  // namespace

int bench_collectives_command(const Arguments& arguments) {
  CommandLine app(
      "Every collective along every axis by every backend, as nccl-tests counts; checked.",
      "choir bench collectives");
  CollectiveBenchOptions options;
  BenchFiles files;
  Arguments words;
  app.add_option("words", words,
                 "device=cuda: in the memory of GPUs; parallel.tensor=2 ...: the axes, without "
                 "them all ranks are along data")
      .checked([](const std::string& word) -> std::string {
        for (const char* known : {"device=", "parallel."})
          if (word.starts_with(known)) return "";
        return "expected device= or parallel.KEY=, not '" + word + "'";
      });
  app.add_option("--min-bytes", options.min_bytes, "smallest buffer").within(1024, 1 << 30);
  app.add_option("--max-bytes", options.max_bytes, "largest buffer, and that of the comparison")
      .within(1024, 1 << 30);
  app.add_option("--repeats", options.repeats, "measurements of each").within(1, 1000);
  app.add_flag("--as-engine", options.as_engine,
               "along the axes as in training: sums and all-gathers are started and then waited "
               "for, and messages go one way at a time");
  add_file_options(app, files);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi(
      [&](MpiSession& session) { return bench_collectives(session, options, words, files); });
}

}  // namespace choir
