// choir bench gemm|attention|ops DECK.json [key.path=value ...]: the parts of a deck's step.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "choir/app/bench.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/ops/bench_ops.hpp"
#include "choir/ops/ceiling.hpp"
#include "choir/train/bench_shapes.hpp"
#include "choir/train/engine.hpp"

namespace choir {
namespace {

/// Where the vocabulary comes from the data, benches of shapes take that of the character decks.
constexpr std::int64_t kCharacters = 65;

struct Request {
  std::string deck;
  Arguments overrides;
  double seconds = 0;
  bool json = false;
};

std::optional<int> parse_request(CLI::App& app, const Arguments& arguments, Request& request) {
  app.add_option("deck", request.deck, "the deck whose shapes are measured")->required();
  app.add_option("overrides", request.overrides, "key.path=value");
  app.add_option("--seconds", request.seconds, "of calls a row")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  app.add_flag("--json", request.json, "one JSON object");
  return parse(app, arguments);
}

struct Subject {
  GptConfig model;
  Precision precision;
  std::int64_t sequences = 0;
};

Subject subject_of(const Request& request, Communicator& world) {
  const std::string text = read_everywhere(world, request.deck);
  Deck deck;
  together(world, [&] { deck = parse_deck(text, request.deck, request.overrides); });
  if (deck.model.gpt.vocab_size == 0) deck.model.gpt.vocab_size = kCharacters;
  // Shapes of a micro-batch do not depend on how many ranks share the global batch.
  const std::int64_t micro = deck.train.micro_batch_size > 0
                                 ? deck.train.micro_batch_size
                                 : resolve_batch(deck, world.size()).micro;
  return {deck.model.gpt, precision_of(deck.train.precision), micro};
}

void print(const std::vector<ShapeRow>& rows, double ceiling, DType type, bool json) {
  if (json) {
    nlohmann::ordered_json all{{"dtype", name_of(type)}, {"ceiling", ceiling}};
    for (const ShapeRow& r : rows)
      all["rows"].push_back({{"name", r.name},
                             {"shape", r.shape},
                             {"calls", r.calls},
                             {"seconds", r.seconds},
                             {"flops", r.flops}});
    fmt::print("{}\n", all.dump());
    return;
  }
  fmt::print(
      "# ceiling: {:.3f} TFLOP/s, a {} product of 1024^3 in the same run\n"
      "# {:<28} {:>22} {:>6} {:>10} {:>9} {:>8} {:>10} {:>10}\n",
      ceiling / 1e12, name_of(type), "name", "shape m x n x k", "calls", "us", "GFLOP/s",
      "of ceil.", "total ms", "floor ms");
  double total = 0, floor = 0;
  for (const ShapeRow& r : rows) {
    const double least = r.flops * static_cast<double>(r.calls) / ceiling;
    total += r.total(), floor += least;
    fmt::print("  {:<28} {:>22} {:>6} {:>10.1f} {:>9.1f} {:>6.0f} % {:>10.3f} {:>10.3f}\n", r.name,
               r.shape, r.calls, 1e6 * r.seconds, r.rate() / 1e9, 100 * r.rate() / ceiling,
               1e3 * r.total(), 1e3 * least);
  }
  fmt::print("  {:<28} {:>22} {:>6} {:>10} {:>9} {:>6.0f} % {:>10.3f} {:>10.3f}\n", "a micro-batch",
             "", "", "", "", 100 * floor / total, 1e3 * total, 1e3 * floor);
}

using RowsOf = std::vector<ShapeRow> (*)(Device&, const GptConfig&, const Precision&, std::int64_t,
                                         double);

int bench_rows(const Request& request, RowsOf rows_of) {
  return with_mpi([&](MpiSession& session) {
    const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    choose_threads(mesh->node());
    const Subject subject = subject_of(request, mesh->world());
    const auto device = make_device(DeviceKind::cpu);
    mesh->world().barrier();  // ranks share the memory and the clock of the machine: all measure
    const double ceiling = ops::measure_gemm(Stream(*device), subject.precision.compute);
    const auto rows =
        rows_of(*device, subject.model, subject.precision, subject.sequences, request.seconds);
    if (session.rank() == 0) print(rows, ceiling, subject.precision.compute, request.json);
    return 0;
  });
}

int bench_all_ops(const Request& request) {
  return with_mpi([&](MpiSession& session) {
    const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    choose_threads(mesh->node());
    const Subject s = subject_of(request, mesh->world());
    const auto device = make_device(DeviceKind::cpu);
    ParameterSet parameters;
    const Gpt model(s.model, parameters);
    const auto rows = ops::bench_ops(*device,
                                     {.rows = s.sequences * s.model.block_size,
                                      .width = s.model.n_embd,
                                      .hidden = s.model.ffn_width,
                                      .vocabulary = s.model.vocab_size,
                                      .parameters = parameters.count()},
                                     request.seconds);
    bool valid = true;
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const ops::BenchRow& row : rows) {
      valid = valid && row.valid;
      if (request.json)
        all.push_back({{"op", row.op},
                       {"shape", to_string(row.shape)},
                       {"dtype", name_of(row.dtype)},
                       {"seconds", row.seconds},
                       {"bytes_per_second", row.bytes_per_second},
                       {"copy_fraction", row.copy_fraction},
                       {"valid", row.valid}});
      else if (session.rank() == 0)
        fmt::print("{}\n", ops::to_string(row));
    }
    if (session.rank() == 0)
      fmt::print("{}\n", request.json ? all.dump() : valid ? "VALID" : "INVALID");
    return valid ? 0 : static_cast<int>(ExitCode::other);
  });
}

}  // namespace

int bench_gemm_command(const Arguments& arguments) {
  CLI::App app("Every matrix product of a deck's micro-batch.", "choir bench gemm");
  Request request{.seconds = 0.2};
  if (const auto code = parse_request(app, arguments, request)) return *code;
  return bench_rows(request, bench_gemms);
}

int bench_attention_command(const Arguments& arguments) {
  CLI::App app("Attention of a deck's micro-batch.", "choir bench attention");
  Request request{.seconds = 0.3};
  if (const auto code = parse_request(app, arguments, request)) return *code;
  return bench_rows(request, bench_attention);
}

int bench_ops_command(const Arguments& arguments) {
  CLI::App app("The bandwidth-bound ops of a deck's micro-batch, in f32 and bf16.",
               "choir bench ops");
  Request request{.seconds = 0.1};
  if (const auto code = parse_request(app, arguments, request)) return *code;
  return bench_all_ops(request);
}

}  // namespace choir
