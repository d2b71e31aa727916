// choir bench checkpoint [DECK.json] [key.path=value ...]
#include <fmt/core.h>

#include "choir/comm/agreement.hpp"
#include "src/app/bench.hpp"

namespace choir {
namespace {

struct BenchCheckpointRequest {
  Arguments words;
  std::int64_t bytes = std::int64_t{1} << 28;
  bool named_bytes = false;
  SaveBenchOptions options;
  BenchFiles files;
};

int run_deck(MpiSession& session, const BenchCheckpointRequest& request, const BenchWords& words) {
  const BenchDeck opened = open_bench_deck(session, words, [&] {
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

int bench_checkpoint_command(const Arguments& arguments) {
  CommandLine app(
      "Times synchronous and asynchronous saves and loads against plain reads and writes of the "
      "same bytes in the same run; output as in IOR.",
      "choir bench checkpoint");
  BenchCheckpointRequest request;
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
  if (const auto code = parse(app, arguments)) return *code;
  request.named_bytes = bytes.given();
  return with_mpi([&](MpiSession& session) { return run_bench_checkpoint(session, request); });
}

}  // namespace choir
