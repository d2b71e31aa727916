// choir bench step|checkpoint DECK.json [key.path=value ...]: the training step and the saves of a
// deck.

#include <fmt/core.h>

#include "choir/deck/deck.hpp"
#include "src/app/bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hints.hpp"
#include "src/lab/bench/bench_step.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

struct BenchStepRequest {
  const FamilyTable& families;
  Arguments words;
  StepBenchOptions options;
  BenchFiles files;
  Arguments notes;  // NAME=TEXT

  std::map<std::string, std::string> notes_by_name() const {
    std::map<std::string, std::string> by_name;
    for (const std::string& note : notes)
      by_name[note.substr(0, note.find('='))] = note.substr(note.find('=') + 1);
    return by_name;
  }
};

int run_bench_step(MpiSession& session, const BenchStepRequest& request) {
  if (const auto wrong = wrong_launcher(session.size()))
    throw CommError(*wrong, "`choir doctor` shows details");
  const BenchWords words = sort_words(request.words);
  if (words.deck.empty())
    throw DeckError("no deck given", program_name() + " bench step inputs/bench_a.json");
  StepBenchOptions options = request.options;
  BenchDeck opened = open_bench_deck(session, request.families, words, [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  const Workplace& place = opened.place;
  Logger log(session.rank() == 0);
  if (request.files.table()) log.to_stdout();
  StepBench bench = bench_step(std::move(opened.deck), *place.mesh, *place.device, log, options);
  bench.provenance = bench_provenance(*place.mesh, *place.device, opened.text, words.overrides);
  bench.notes = request.notes_by_name();
  if (session.rank() == 0) {
    log.plain(to_string(bench));
    return request.files.finish(csv_header() + "\n" + to_csv(bench) + "\n", to_json(bench) + "\n",
                                bench.valid());
  }
  return static_cast<int>(bench.valid() ? ExitCode::done : ExitCode::other);
}

}  // namespace

int bench_step_command(const Invocation& call) {
  CommandLine app(
      "Times the training step of a deck with the real engine and data (speech models: synthetic "
      "utterances), without evaluation and checkpoints.",
      "choir bench step");
  BenchStepRequest request{.families = call.families};
  app.add_option("words", request.words,
                 "deck, and any number of key.path=value (device=auto|cpu|cuda)");
  app.add_option("--seconds", request.options.max_seconds,
                 "time limit of the timed steps in seconds")
      .within(0.1, 1e6)
      .shows_default();
  app.add_option("--warmup", request.options.warmup_seconds, "seconds of warm-up (2 to 10 steps)")
      .within(0.0, 1e6)
      .shows_default();
  app.add_option("--steps", request.options.steps, "number of timed steps, regardless of --seconds")
      .within(1, 1 << 16);
  app.add_flag("!--no-comm", request.options.communicate,
               "skip all communication; the difference to a run without this flag is the cost of "
               "communication");
  app.add_flag("!--no-ceilings", request.options.ceilings,
               "do not measure products and copies; the report then has no MFU and no floor");
  app.add_option("--gradient-noise", request.options.noise_probes,
                 "afterwards measure the gradient noise scale from this many pairs of a "
                 "micro-batch and a global batch")
      .within(2, 10000);
  app.add_option("--last-place", request.options.last_place_seed,
                 "move every initial weight by one unit in its last place, up or down by this "
                 "seed, to show how much rounding may change")
      .positive();
  app.add_option("--note", request.notes, "NAME=TEXT to store in the JSON object; may be repeated")
      .checked([](const std::string& note) -> std::string {
        return note.find('=') == std::string::npos ? "expected NAME=TEXT, not '" + note + "'" : "";
      });
  BenchAudio& audio = request.options.audio;
  app.add_option("--batch-duration", audio.batch_duration,
                 "seconds of audio per micro-batch (speech models)")
      .shows_default();
  app.add_option("--shortest", audio.shortest, "seconds of the shortest utterance (speech models)")
      .shows_default();
  app.add_option("--longest", audio.longest, "seconds of the longest utterance (speech models)")
      .shows_default();
  app.add_option("--labels", audio.labels_per_second, "labels per second (speech models)")
      .shows_default();
  add_file_options(app, request.files);
  if (const auto code = parse(app, call)) return *code;
  request.options.min_seconds = std::min(request.options.min_seconds, request.options.max_seconds);
  return with_mpi([&](MpiSession& session) { return run_bench_step(session, request); });
}

namespace {

struct BenchCheckpointRequest {
  const FamilyTable& families;
  Arguments words;
  std::int64_t bytes = std::int64_t{1} << 28;
  bool named_bytes = false;
  SaveBenchOptions options;
  BenchFiles files;
};

int run_deck(MpiSession& session, const BenchCheckpointRequest& request, const BenchWords& words) {
  const BenchDeck opened = open_bench_deck(session, request.families, words, [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  const Workplace& place = opened.place;
  Logger log(false);
  CheckpointReport report{
      .run = bench_save(opened.deck, *place.mesh, *place.device, log, request.options),
      .what = words.deck,
      .layout = place.mesh->layout().to_string(),
      .device = place.device->description(),
      .folder = request.options.folder,
      .provenance = ""};
  report.provenance = bench_provenance(*place.mesh, *place.device, opened.text, words.overrides);
  return finish_bench(session, request.files, report);
}

int run_bytes(MpiSession& session, const BenchCheckpointRequest& request, const BenchWords& words) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  together(mesh->world(), [&] {
    if (!words.overrides.empty())
      throw DeckError(fmt::format("'{}' is for a deck, but no deck is given", words.overrides[0]),
                      "choir bench checkpoint DECK.json key.path=value, or --bytes N alone");
    if (session.rank() == 0) request.files.require_writable();
  });
  choose_threads(mesh->node());
  const auto device = bench_device(words.device.empty() ? "cpu" : words.device, *mesh);
  CheckpointReport report{.run = bench_save(request.bytes, *mesh, *device, request.options),
                          .what = fmt::format("--bytes {}", request.bytes),
                          .layout = "",
                          .device = device->description(),
                          .folder = request.options.folder,
                          .provenance = ""};
  report.provenance = bench_provenance(*mesh, *device, "", {});
  return finish_bench(session, request.files, report);
}

int run_bench_checkpoint(MpiSession& session, const BenchCheckpointRequest& request) {
  if (const auto wrong = wrong_launcher(session.size()))
    throw CommError(*wrong, "`choir doctor` shows details");
  const BenchWords words = sort_words(request.words);
  if (words.deck.empty()) return run_bytes(session, request, words);
  if (request.named_bytes)
    throw DeckError("a deck and --bytes are both given",
                    "the deck determines the size of the state: leave one of the two out");
  return run_deck(session, request, words);
}

}  // namespace

int bench_checkpoint_command(const Invocation& call) {
  CommandLine app(
      "Times synchronous and asynchronous saves and loads against plain reads and writes of the "
      "same bytes in the same run; output as in IOR.",
      "choir bench checkpoint");
  BenchCheckpointRequest request{.families = call.families};
  app.add_option(
      "words", request.words,
      "deck whose state is saved, and any number of key.path=value (device=auto|cpu|cuda)");
  const auto bytes =
      app.add_option("--bytes", request.bytes, "bytes of state on all ranks, without a deck")
          .within(std::int64_t{1} << 16, std::int64_t{1} << 50)
          .shows_default();
  app.add_option("--rounds", request.options.rounds, "measurements per row")
      .within(1, 1000)
      .shows_default();
  app.add_option("--transfer", request.options.transfer_bytes, "bytes per plain read or write")
      .within(std::int64_t{1} << 10, std::int64_t{1} << 30)
      .shows_default();
  app.add_option("--folder", request.options.folder,
                 "folder in which a temporary directory is created")
      .shows_default();
  app.add_option("--step-seconds", request.options.step_seconds,
                 "seconds of a training step, instead of measuring it with the deck")
      .within(1e-6, 1e6);
  add_file_options(app, request.files);
  if (const auto code = parse(app, call)) return *code;
  request.named_bytes = bytes.given();
  return with_mpi([&](MpiSession& session) { return run_bench_checkpoint(session, request); });
}

}  // namespace choir
