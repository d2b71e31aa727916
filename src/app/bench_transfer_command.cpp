// choir bench collectives|reader: the speed of communication and of the token readers.

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "src/app/bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/bench/bench_collectives.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

/// `words`: device=... and the keys of parallel.* that describe the layout.
int bench_collectives(MpiSession& session, const FamilyTable& families,
                      CollectiveBenchOptions options, const Arguments& words,
                      const BenchFiles& files) {
  const double started = now_seconds();
  if (session.rank() == 0)
    options.say = [started](const std::string& part) {
      print_safely(stderr, "{:6.1f} s  {}\n", now_seconds() - started, part);
    };
  Deck deck;
  Layout layout;
  {
    const auto world = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    together(world->world(), [&] {
      // The model has enough heads and layers for any layout of this many ranks.
      const int n = session.size();
      deck = parse_deck(families,
                        fmt::format(R"({{"device": "cpu", "data": {{"format": "synthetic"}},
                           "model": {{"vocab_size": 256, "n_layer": {0}, "n_head": {0},
                                      "n_embd": {1}, "ffn_width": {1}, "block_size": {1}}},
                           "train": {{"micro_batch_size": 1, "grad_accum": {0}}}}})",
                                    n, 32 * n),
                        "choir bench collectives", words);
      if (n == 1)
        throw DeckError("a single rank has nothing to communicate",
                        "mpiexec -n 2 choir bench collectives");
      layout = layout_of(deck, n);
      if (session.rank() == 0) files.require_writable();
    });
  }
  Workplace place;
  place.mesh = Mesh::over_world(layout, mesh_options_of(deck));
  open_device(place, deck);
  if (options.say)
    options.say("the largest buffers take longest; --max-bytes 1048576 is a quick look");
  const ContentionMeter meter;
  CollectivesReport report{.device = place.device->description(),
                           .note = place.mesh->transport_note(),
                           .provenance = bench_provenance(*place.mesh, *place.device, "", words),
                           .ranks = session.size(),
                           .rows = bench_axes(*place.mesh, *place.device, options)};
  if (place.device->host_visible() && place.mesh->node().size() > 1)
    report.comparison = compare_all_reduce(*place.mesh, options);
  report.noise = noise_among(*place.mesh, meter);
  return finish_bench(session, files, report);
}

/// The bytes of "1048576", "8M", "8MB" or "8MiB": the units are powers of 1024, as in nccl-tests.
/// Returns nothing if the word is no size.
std::optional<double> bytes_of_word(const std::string& word) {
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, problem] = std::from_chars(word.data(), end, number);
  if (problem != std::errc()) return std::nullopt;
  std::string unit = fold_name(trim(std::string_view(stop, end)));
  for (const std::string_view tail : {"ib", "b"})
    if (unit.ends_with(tail)) {
      unit.resize(unit.size() - tail.size());
      break;
    }
  const std::size_t power = std::string_view("kmg").find(unit);
  if (unit.size() > 1 || power == std::string_view::npos) return std::nullopt;
  return unit.empty() ? number : std::ldexp(number, 10 * (static_cast<int>(power) + 1));
}

/// Adds an option whose value is a size in bytes, also with a unit as nccl-tests has it ("8M").
void add_size(CommandLine& app, const std::string& names, std::string& word,
              const std::string& help) {
  app.add_option(names, word, help).checked([](const std::string& given) -> std::string {
    const auto bytes = bytes_of_word(given);
    if (!bytes) return "'" + given + "' is no size; legal: 1048576, 1M, 1MiB";
    return *bytes >= 1024 && *bytes <= double{1 << 30}
               ? ""
               : fmt::format("{} is out of range; legal: 1K to 1G", given);
  });
}

}  // namespace

int bench_collectives_command(const Invocation& call) {
  CommandLine app(
      "Times and checks every collective along every axis by every backend; bandwidths as in "
      "nccl-tests.",
      "choir bench collectives");
  CollectiveBenchOptions options;
  BenchFiles files;
  Arguments words;
  std::string least, most, gpus;
  app.add_option("words", words,
                 "device=cuda: use GPU memory; parallel.tensor=2 ...: sizes of the axes (default: "
                 "all ranks along data)")
      .checked([](const std::string& word) -> std::string {
        for (const char* known : {"device=", "parallel."})
          if (word.starts_with(known)) return "";
        return "expected device= or parallel.KEY=, not '" + word + "'";
      });
  add_size(app, "-b,--min-bytes", least, "smallest buffer: 1048576, 1M or 1MiB");
  add_size(app, "-e,--max-bytes", most,
           "largest buffer, which the comparison also uses: 67108864, 64M or 64MiB");
  app.add_option("-f,--factor", options.factor, "factor from each size of a buffer to the next")
      .within(2, 1 << 20)
      .shows_default();
  app.add_option("-g,--gpus-per-rank", gpus, "GPUs of a rank, as in nccl-tests: always 1")
      .checked([](const std::string& given) -> std::string {
        return given == "1" ? ""
                            : "a rank has one GPU here; start as many ranks: jobs/launch -n " +
                                  given + " build/choir bench collectives device=cuda";
      });
  app.add_option("-n,--repeats", options.repeats, "measurements per row").within(1, 1000);
  app.add_flag("--as-engine", options.as_engine,
               "run collectives along the axes as in training: reductions and all-gathers are "
               "asynchronous, and messages go in one direction at a time");
  add_file_options(app, files);
  if (const auto code = parse(app, call)) return *code;
  if (!least.empty()) options.min_bytes = static_cast<std::size_t>(*bytes_of_word(least));
  if (!most.empty()) options.max_bytes = static_cast<std::size_t>(*bytes_of_word(most));
  if (most.empty()) options.max_bytes = std::max(options.max_bytes, options.min_bytes);
  if (options.min_bytes > options.max_bytes)
    return without_mpi([&]() -> int {
      throw DeckError(fmt::format("choir bench collectives: --min-bytes {} is above --max-bytes {}",
                                  options.min_bytes, options.max_bytes),
                      "exchange the two");
    });
  return with_mpi([&](MpiSession& session) {
    return bench_collectives(session, call.families, options, words, files);
  });
}

namespace {

struct BenchReaderRequest {
  std::string folder = ".";
  std::int64_t bytes = std::int64_t{1} << 30;
  int rounds = 5;
  BenchFiles files;
};

int run_bench_reader(MpiSession& session, const BenchReaderRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  together(mesh->world(), [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  const CpuDevice host;
  ReaderReport report{.bytes = request.bytes,
                      .ranks = session.size(),
                      .folder = request.folder,
                      .provenance = bench_provenance(*mesh, host, "", {})};
  report.rows = bench_readers(mesh->world(), request.folder, request.bytes, request.rounds);
  return finish_bench(session, request.files, report);
}

}  // namespace

int bench_reader_command(const Invocation& call) {
  CommandLine app(
      "Compares the token readers with plain pread on a file in the page cache; output as in IOR.",
      "choir bench reader");
  BenchReaderRequest request;
  app.add_option("--bytes", request.bytes, "size of the file")
      .within(std::int64_t{1} << 20, std::int64_t{1} << 40);
  app.add_option("--rounds", request.rounds, "measurements per reader").within(1, 1000);
  app.add_option("--folder", request.folder, "folder in which a temporary file is written");
  add_file_options(app, request.files);
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) { return run_bench_reader(session, request); });
}

}  // namespace choir
