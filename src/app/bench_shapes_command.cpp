// choir bench ops|gemm|attention [DECK.json] [key.path=value ...]: measures the parts of a deck's
// step, or the shapes of a preset.
#include <fmt/core.h>

#include <algorithm>

#include "choir/models/family.hpp"
#include "kernels/bench/bench_operands.hpp"
#include "kernels/bench/bench_table.hpp"
#include "kernels/bench/op_bench.hpp"
#include "src/app/bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/lab/bench/bench_shapes.hpp"

namespace choir {
namespace {

/// Vocabulary for decks whose data would determine it: that of the character decks.
constexpr std::int64_t kCharacters = 65;

const std::vector<DType> kTypes{DType::f32, DType::bf16, DType::f16};

struct BenchShapesRequest {
  const FamilyTable& families;
  Arguments words;
  std::string preset, type;
  double seconds = 0;
  BenchFiles files;
};

std::optional<int> parse_request(CommandLine& app, const Invocation& call,
                                 BenchShapesRequest& request) {
  app.add_option("words", request.words,
                 "deck whose shapes are measured, and any number of key.path=value "
                 "(device=auto|cpu|cuda also without a deck)");
  app.add_option("--preset", request.preset,
                 "shapes without a deck: cpu (a small model) or gpu (tensors of 100 MB and more); "
                 "default: the preset of the device")
      .one_of({"cpu", "gpu"});
  app.add_option("--type", request.type,
                 "element type; default: all types that the device supports")
      .one_of({"f32", "bf16", "f16"});
  app.add_option("--seconds", request.seconds, "seconds of calls per row")
      .within(0.001, 60.0)
      .shows_default();
  add_file_options(app, request.files);
  return parse(app, call);
}

/// The subject of a measurement: a deck's micro-batch or a preset.
struct Subject {
  std::optional<Deck> deck;
  std::string preset, device;
};

Subject subject_of(const BenchShapesRequest& request, Communicator& world) {
  const BenchWords words = sort_words(request.words);
  Subject subject{.preset = request.preset, .device = words.device};
  if (words.deck.empty() && !words.overrides.empty())
    throw DeckError(fmt::format("'{}' changes a deck, but no deck is given", words.overrides[0]),
                    "without a deck only device=auto|cpu|cuda can be given");
  if (!words.deck.empty() && !request.preset.empty())
    throw DeckError("--preset replaces a deck, but a deck is given", "leave one of them out");
  if (!words.deck.empty() && !request.type.empty())
    throw DeckError("--type is for presets, but a deck is given", "leave one of them out");
  if (!words.deck.empty()) {
    const std::string text = read_everywhere(world, words.deck);
    together(world, [&] {
      subject.deck = parse_deck(request.families, text, words.deck, words.overrides);
    });
    if (subject.device.empty()) subject.device = name_of(subject.deck->device);
  }
  if (subject.device.empty()) subject.device = "auto";
  return subject;
}

/// Inputs of a bench, and the report that it fills.
struct Bench {
  Device& device;
  Stream stream{device};
  std::optional<DeckWork> deck;  ///< the deck's micro-batch, if a deck is measured
  Precision precision;           ///< of the deck
  std::string preset;            ///< the preset, if no deck is given
  double seconds = 0;
  std::vector<DType> types;  ///< the requested types
  BenchReport report;

  bool large() const { return preset == "gpu"; }
  /// Returns the candidates that the user requested and the device supports.
  std::vector<DType> offered(const std::vector<DType>& candidates) {
    std::vector<DType> list;
    for (const DType t : candidates) {
      if (std::find(types.begin(), types.end(), t) == types.end()) continue;
      if (ops::supports(device, t))
        list.push_back(t);
      else
        report.remarks.push_back(fmt::format("{}: not supported by this device", name_of(t)));
    }
    return list;
  }
  /// Precisions of the products: the deck's, or one for each offered type.
  std::vector<Precision> precisions(const std::vector<DType>& candidates) {
    if (deck) return {precision};
    std::vector<Precision> list;
    for (const DType t : offered(candidates)) list.push_back({.compute = t});
    return list;
  }
  double product_ceiling(DType t) {
    const double rate = ops::measure_gemm(stream, t);
    report.ceilings.push_back(fmt::format("{:.3f} TFLOP/s, a {} product of {}^3 in the same run",
                                          rate / 1e12, name_of(t),
                                          ops::large_product(device.kind())));
    return rate;
  }
  void take(std::vector<ops::BenchRow> rows) {
    for (ops::BenchRow& row : rows) report.rows.push_back(std::move(row));
  }
};

void measure_ops(Bench& b) {
  // cpu: shape a of the decks, two minutes of speech; gpu: GPT-2 124M, 64 sequences of 1024, and
  // 8 minutes of speech for a large FastConformer.
  ops::BenchShape shape{.parameters = 804096, .speech = {.samples = 8}};
  if (b.large())
    shape = {65536, 768, 3072, 50304, 1024, 64, 124475904, {32, 1500, 80, 256, 512, 8, 9}};
  if (b.deck) {
    const ModelFamily& family = b.deck->model.family();
    shape = family.op_shape(b.deck->model, b.deck->shape);
    if (shape.rows == 0)
      throw DeckError(
          fmt::format("choir bench ops does not support model.type = \"{}\"", family.name()),
          "use `choir bench gemm` or `choir bench step` with this deck");
    ParameterSet parameters;
    family.make(b.deck->model, parameters, {});
    shape.parameters = parameters.count();
  }
  const double ceiling = ops::measure_copy(b.stream);
  b.report.ceilings.push_back(
      fmt::format("{:.1f} GB/s, a copy larger than all caches (read + written)", ceiling / 1e9));
  b.take(ops::bench_ops(b.device, shape, b.offered(kTypes), b.seconds, ceiling));
}

void measure_gemms(Bench& b) {
  constexpr std::int64_t kLargestOnCpu = 2048, kLargestOnGpu = 8192;
  const bool cuda = b.device.kind() == DeviceKind::cuda;
  const std::vector<StepGemm> squares =
      !b.deck || cuda ? square_gemms(b.large() || cuda ? kLargestOnGpu : kLargestOnCpu)
                      : std::vector<StepGemm>();
  for (const Precision& p : b.precisions(kTypes)) {
    std::map<DType, std::vector<StepGemm>> gemms;
    if (b.deck) gemms = b.deck->gemms;
    gemms[p.compute].insert(gemms[p.compute].end(), squares.begin(), squares.end());
    for (const auto& [type, list] : gemms)
      b.take(bench_gemms(b.device, list, type == p.compute ? p : Precision{.compute = type},
                         b.product_ceiling(type), b.seconds));
  }
}

void measure_attention(Bench& b) {
  std::vector<AttentionShape> shapes =
      b.large() ? attention_series(8192, 16384, 2048) : attention_series(1024, 1024, 128);
  if (b.deck) shapes = b.deck->attention;
  if (shapes.empty())
    throw DeckError(
        fmt::format("model.type = \"{}\" has no attention", b.deck->model.family().name()),
        "use `choir bench gemm` or `choir bench step` with this deck");
  // On the GPU f16 uses the same kernels as bf16, at the same rate.
  std::vector<DType> types{DType::bf16};
  if (b.device.kind() == DeviceKind::cpu) types.insert(types.begin(), DType::f32);
  for (const Precision& p : b.precisions(types)) {
    AttentionBench bench =
        bench_attention(b.device, shapes, p.compute, ops::AttentionImplementation::automatic,
                        b.product_ceiling(p.compute), b.seconds);
    b.take(std::move(bench.rows));
    for (std::string& remark : bench.remarks) b.report.remarks.push_back(std::move(remark));
  }
}

int run_bench_shapes(MpiSession& session, const BenchShapesRequest& request, const char* name,
                     void (*measure)(Bench&)) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  choose_threads(mesh->node());
  together(mesh->world(), [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  Subject subject = subject_of(request, mesh->world());
  const std::unique_ptr<Device> device = bench_device(subject.device, *mesh);
  if (!subject.deck && subject.preset.empty())
    subject.preset = device->kind() == DeviceKind::cuda ? "gpu" : "cpu";
  std::optional<DeckWork> work;
  Precision precision;
  if (subject.deck) {
    Logger log(session.rank() == 0);
    work = work_of(*subject.deck, kCharacters, *mesh, *device, log);
    precision = precision_of(name_of(subject.deck->train.precision));
  }
  mesh->world()
      .barrier();  // ranks share memory and clocks of the machine, so all measure at the same time
  Bench bench{.device = *device,
              .deck = std::move(work),
              .precision = precision,
              .preset = subject.preset,
              .seconds = request.seconds,
              .types = request.type.empty() ? kTypes : std::vector{dtype_of(request.type)},
              .report = {.bench = name, .device = device->description()}};
  const ContentionMeter meter;
  measure(bench);
  if (bench.report.rows.empty())
    throw DeckError(fmt::format("this bench has no rows in {}", request.type));
  bench.report.noise = noise_among(*mesh, meter);
  bench.report.provenance = bench_provenance(*mesh, *device, "", request.words);
  return finish_bench(session, request.files, bench.report);
}

int command(const char* name, const char* title, const Invocation& call, double seconds,
            void (*measure)(Bench&)) {
  CommandLine app(title, std::string("choir bench ") + name);
  BenchShapesRequest request{.families = call.families, .seconds = seconds};
  if (const auto code = parse_request(app, call, request)) return *code;
  return with_mpi(
      [&](MpiSession& session) { return run_bench_shapes(session, request, name, measure); });
}

}  // namespace

int bench_gemm_command(const Invocation& call) {
  return command("gemm",
                 "Times every matrix product of a deck's micro-batch, and square ones, against a "
                 "large product.",
                 call, 0.2, measure_gemms);
}

int bench_attention_command(const Invocation& call) {
  return command("attention",
                 "Times attention of a deck's micro-batch, or for a series of lengths.", call, 0.2,
                 measure_attention);
}

int bench_ops_command(const Invocation& call) {
  return command("ops",
                 "Times the bandwidth-bound ops in every type that the device supports, against "
                 "the copy rate.",
                 call, 0.1, measure_ops);
}

}  // namespace choir
