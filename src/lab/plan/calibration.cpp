#include "src/lab/plan/calibration.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <tuple>

#include "choir/core/error.hpp"
#include "src/core/hash.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "choir calibration";
constexpr std::array kCallNames{"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                "message"};
constexpr std::array kAxisNames{"tp", "cp", "dp", "pp"};  // the names of short_name()

std::string checksum_of(const Json& json) {
  const std::string text = dumped(json);
  return fmt::format("{:08x}", crc32c(text.data(), text.size()));
}

Json json_of(const ProductTime& row) {
  return {{"dtype", name_of(row.dtype)},
          {"transpose_a", row.transpose_a},
          {"transpose_b", row.transpose_b},
          {"m", row.m},
          {"n", row.n},
          {"k", row.k},
          {"seconds", row.seconds}};
}
Json json_of(const AttentionTime& row) {
  return {{"dtype", name_of(row.dtype)},  {"backward", row.backward},
          {"causal", row.causal},         {"tokens", row.tokens},
          {"head_width", row.head_width}, {"flops_per_second", row.flops_per_second}};
}
Json json_of(const StreamTimes& row) {
  return {{"precision", row.precision},       {"product_factor", row.product_factor},
          {"seconds_per_byte", row.per_byte}, {"seconds_per_flop", row.per_flop},
          {"seconds_per_step", row.step},     {"fit_error", row.fit_error}};
}
Json json_of(const UpdateTime& row) {
  return {{"precision", row.precision}, {"bytes", row.bytes}, {"seconds", row.seconds}};
}
Json json_of(const CallTime& row) {
  return {{"place", row.across ? "network" : "node"},
          {"way", row.window ? "window" : "message"},
          {"call", kCallNames[static_cast<std::size_t>(row.kind)]},
          {"ranks", row.ranks},
          {"bytes", row.bytes},
          {"seconds", row.seconds}};
}
Json json_of(const Overlap& row) {
  return {{"place", row.across ? "network" : "node"}, {"hidden", row.hidden}};
}
Json json_of(const WaitFactor& row) {
  return {{"precision", row.precision}, {"axis", short_name(row.axis)}, {"factor", row.factor}};
}

/// Reads fields of a file; an error names the field.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  double number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(key, "a finite number");
    return value.get<double>();
  }
  double positive(const char* key) const {
    const double value = number(key);
    if (!(value > 0)) refuse(key, "above 0");
    return value;
  }
  double at_least(const char* key, double least) const {
    const double value = number(key);
    if (value < least) refuse(key, fmt::format("{} or more", least));
    return value;
  }
  double not_negative(const char* key) const { return at_least(key, 0); }
  template <class T = std::int64_t>
  T count(const char* key) const {
    const double value = positive(key);
    if (value != std::floor(value) || value > 1e15) refuse(key, "a whole number");
    return static_cast<T>(value);
  }
  bool flag(const char* key) const {
    if (!at(key).is_boolean()) refuse(key, "true or false");
    return at(key).get<bool>();
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key, "a text");
    return at(key).get<std::string>();
  }
  /// The index of the text in a list.
  template <class List>
  std::size_t choice(const char* key, const List& list) const {
    const std::string word = text(key);
    const auto found = std::find(list.begin(), list.end(), word);
    if (found == list.end()) refuse(key, join({list.begin(), list.end()}, ", "));
    return static_cast<std::size_t>(found - list.begin());
  }
  DType dtype() const {
    constexpr std::array kTypes{"f64", "f32", "bf16", "f16"};
    return dtype_of(kTypes[choice("dtype", kTypes)]);
  }
  bool has(const char* key) const { return json_.contains(key); }
  bool across() const { return choice("place", std::array{"node", "network"}) == 1; }
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) refuse(key, "present");
    return *found;
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& wanted) const {
    throw DeckError(fmt::format("{}: \"{}\" is not {}", where_, key, wanted),
                    "create the file with choir calibrate");
  }
  const Json& json_;
  std::string where_;
};

template <class Row, class Read>
std::vector<Row> rows_of(const Json& json, const char* name, const std::string& source,
                         const Read& read) {
  std::vector<Row> rows;
  const Json& list = Reader(json, source).at(name);
  if (!list.is_array())
    throw DeckError(fmt::format("{}: \"{}\" is not a list", source, name),
                    "create the file with choir calibrate");
  for (std::size_t i = 0; i < list.size(); ++i)
    rows.push_back(read(Reader(list[i], fmt::format("{}: {}[{}]", source, name, i))));
  return rows;
}

template <class Rows>
Json list_of(const Rows& rows) {
  Json list = Json::array();
  for (const auto& row : rows) list.push_back(json_of(row));
  return list;
}

void require_whole(const Json& json, const std::string& source) {
  if (!json.is_object() || json.value("format", Json()) != kFormat)
    throw DeckError(fmt::format("{} is not a calibration", source),
                    "create one with choir calibrate --out FILE.json");
  if (json.value("version", Json()) != kCalibrationVersion)
    throw DeckError(
        fmt::format("{} is a calibration of version {}, but this program reads version {}", source,
                    dumped(json.value("version", Json())), kCalibrationVersion),
        "measure again: choir calibrate");
  Json without = json;
  without.erase("crc32c");
  if (json.value("crc32c", Json()) != checksum_of(without))
    throw DeckError(
        fmt::format("{} was changed after choir calibrate wrote it: its checksum differs", source),
        "measure again; calibration files must not be edited");
}

void read_head(Calibration& c, const Reader& head) {
  c.name = head.text("name");
  c.assumed = head.flag("assumed");
  c.device = head.text("device");
  c.description = head.text("description");
  c.ranks = head.count<int>("ranks");
  c.ranks_per_node = head.count<int>("ranks_per_node");
  c.threads = head.count<int>("threads");
  c.provenance = dumped(head.at("provenance"));
  if (head.has("noise")) c.noise = head.text("noise");  // files of older versions do not say
}

}  // namespace

std::string to_json(const Calibration& c) {
  Json json{{"format", kFormat},
            {"version", kCalibrationVersion},
            {"name", c.name},
            {"assumed", c.assumed},
            {"device", c.device},
            {"description", c.description},
            {"ranks", c.ranks},
            {"ranks_per_node", c.ranks_per_node},
            {"threads", c.threads},
            {"products", list_of(c.products)},
            {"attention", list_of(c.attention)},
            {"streams", list_of(c.streams)},
            {"updates", list_of(c.updates)},
            {"calls", list_of(c.calls)},
            {"overlaps", list_of(c.overlaps)},
            {"waits", list_of(c.waits)},
            {"noisy", !c.noise.empty()},
            {"noise", c.noise},
            {"provenance", parsed_ordered_json(c.provenance)}};
  json["crc32c"] = checksum_of(json);
  return dumped(json, 1) + "\n";
}

Calibration calibration_of_json(std::string_view text, const std::string& source) {
  Json json;
  try {
    json = read_ordered_json(text, source);
  } catch (const JsonError& error) {
    throw DeckError(error.what(), "create a calibration with choir calibrate --out FILE.json");
  }
  require_whole(json, source);
  Calibration c;
  read_head(c, Reader(json, source));
  c.products = rows_of<ProductTime>(json, "products", source, [](const Reader& r) {
    return ProductTime{r.dtype(),    r.flag("transpose_a"), r.flag("transpose_b"), r.count("m"),
                       r.count("n"), r.count("k"),          r.positive("seconds")};
  });
  c.attention = rows_of<AttentionTime>(json, "attention", source, [](const Reader& r) {
    return AttentionTime{r.dtype(),         r.flag("backward"),    r.flag("causal"),
                         r.count("tokens"), r.count("head_width"), r.positive("flops_per_second")};
  });
  c.streams = rows_of<StreamTimes>(json, "streams", source, [](const Reader& r) {
    return StreamTimes{r.text("precision"),
                       r.positive("product_factor"),
                       r.not_negative("seconds_per_byte"),
                       r.not_negative("seconds_per_flop"),
                       r.not_negative("seconds_per_step"),
                       r.not_negative("fit_error")};
  });
  c.updates = rows_of<UpdateTime>(json, "updates", source, [](const Reader& r) {
    return UpdateTime{r.text("precision"), r.positive("bytes"), r.positive("seconds")};
  });
  c.calls = rows_of<CallTime>(json, "calls", source, [](const Reader& r) {
    return CallTime{r.across(),
                    r.choice("way", std::array{"message", "window"}) == 1,
                    static_cast<CallKind>(r.choice("call", kCallNames)),
                    r.count<int>("ranks"),
                    r.positive("bytes"),
                    r.positive("seconds")};
  });
  c.overlaps = rows_of<Overlap>(json, "overlaps", source, [](const Reader& r) {
    return Overlap{r.across(), r.number("hidden")};
  });
  c.waits = rows_of<WaitFactor>(json, "waits", source, [](const Reader& r) {
    return WaitFactor{r.text("precision"), static_cast<Axis>(r.choice("axis", kAxisNames)),
                      r.at_least("factor", 1)};
  });
  return c;
}

Calibration read_calibration(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown))
    throw DeckError(fmt::format("the calibration '{}' does not exist", path),
                    advice_on_path(path, fmt::format("jobs/launch -n N build/choir calibrate --out "
                                                     "{} creates it; --calibration assumed takes "
                                                     "the figures of vendors",
                                                     path)));
  if (std::filesystem::is_regular_file(path, unknown) && std::filesystem::is_empty(path, unknown))
    throw DeckError(
        fmt::format("the calibration '{}' is empty: it was interrupted", path),
        fmt::format("measure again: jobs/launch -n N build/choir calibrate --out {}", path));
  return calibration_of_json(read_deck_text(path), path);
}

void scale_network(Calibration& c, double speed) {
  if (!(speed > 0) || !std::isfinite(speed))
    throw DeckError(
        fmt::format("--network {} is not above 0", speed),
        "for example --network 0.5 for links that are half as fast as the calibrated ones");
  std::map<std::tuple<CallKind, bool, int>, double> least;
  for (const CallTime& call : c.calls) {
    if (!call.across) continue;
    double& known =
        least.try_emplace({call.kind, call.window, call.ranks}, call.seconds).first->second;
    known = std::min(known, call.seconds);
  }
  if (least.empty())
    throw DeckError("--network: the calibration has no times of messages between nodes",
                    "calibrate with ranks on two nodes");
  for (CallTime& call : c.calls) {
    if (!call.across) continue;
    const double latency = least.at({call.kind, call.window, call.ranks});
    call.seconds = latency + (call.seconds - latency) / speed;
  }
}

namespace {

/// The command that measures this precision, too, and replaces the file.
std::string calibrate_again(const Calibration& c, const std::string& precision,
                            const std::string& file) {
  std::string words;
  for (const StreamTimes& s : c.streams) words += " --precision " + s.precision;
  return fmt::format(
      "`jobs/launch -n {} {} calibrate{} --precision {} --out {}` measures it, too, and replaces "
      "the file",
      c.ranks, program_name(), words, precision, file);
}

}  // namespace

void require_use(const Calibration& c, const PlanTarget& target, const Deck& deck, int ranks,
                 int ranks_per_node, const std::string& file) {
  if (c.device != name_of(target.kind))
    throw DeckError(fmt::format("the calibration is for {} ({}), but the plan for {} ({})", c.name,
                                c.device, target.name, name_of(target.kind)),
                    "calibrate on such a machine, or plan with another --target");
  const std::string precision(name_of(deck.train.precision));
  const bool known = std::any_of(c.streams.begin(), c.streams.end(),
                                 [&](const StreamTimes& s) { return s.precision == precision; });
  if (!known)
    throw DeckError(
        fmt::format("the calibration does not contain train.precision = \"{}\"", precision),
        c.assumed
            ? "plan with another train.precision, or measure such a machine: `choir calibrate`"
            : calibrate_again(c, precision, file));
  const auto has_calls = [&](bool across) {
    return std::any_of(c.calls.begin(), c.calls.end(),
                       [&](const CallTime& call) { return call.across == across; });
  };
  if (std::min(ranks, ranks_per_node) > 1 && !has_calls(false))
    throw DeckError("the calibration has no times of messages inside a node",
                    "calibrate with several ranks: mpiexec -n 2 choir calibrate");
  if (ranks > ranks_per_node && !has_calls(true))
    throw DeckError(
        fmt::format(
            "{} ranks are on {} nodes, but the calibration has no times of messages between nodes",
            ranks, (ranks + ranks_per_node - 1) / ranks_per_node),
        "calibrate with ranks on two nodes, or plan for one node with --gpus-per-node");
}

namespace {

// The calibration of a machine that was not measured: the manufacturers' figures for its GPUs, less
// the part that programs usually do not reach.

/// Bytes per second of the GPU's memory, of its links inside a node, and of its network card in one
/// direction, by the manufacturers.
struct CardLinks {
  const char* name;  ///< the beginning of PlanTarget::name
  double memory, node, network;
};
constexpr std::array<CardLinks, 4> kLinks{{
    {"A100 80", 2.04e12, 300e9, 25e9},
    {"A100 40", 1.56e12, 300e9, 25e9},
    {"H100", 3.35e12, 450e9, 50e9},
    {"H200", 4.8e12, 450e9, 50e9},
}};

constexpr double kProductShare = 0.7, kAttentionShare = 0.35, kStreamShare = 0.8, kLinkShare = 0.8;
/// A product with these extents reaches half of its share, because of partly filled tiles and
/// waves.
constexpr double kHalfExtent = 96;
constexpr double kLaunch = 4e-6;  ///< seconds of an empty kernel
constexpr double kNodeLatency = 15e-6, kNetworkLatency = 30e-6;

void add_products(Calibration& c, DType dtype, double peak) {
  for (const auto& [a, b] : {std::pair{false, true}, {false, false}, {true, false}})
    for (const std::int64_t m : {64, 512, 4096, 32768})
      for (const std::int64_t n : {64, 512, 4096, 32768})
        for (const std::int64_t k : {64, 512, 4096, 32768}) {
          const auto share = [](std::int64_t x) {
            return static_cast<double>(x) / (static_cast<double>(x) + kHalfExtent);
          };
          const double flops =
              2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
          const double rate = kProductShare * peak * share(m) * share(n) * share(k);
          c.products.push_back({dtype, a, b, m, n, k, flops / rate + kLaunch});
        }
  for (const bool backward : {false, true})
    for (const std::int64_t tokens : {128, 1024, 8192})
      c.attention.push_back({dtype, backward, true, tokens, 128,
                             kAttentionShare * peak * static_cast<double>(tokens) /
                                 (static_cast<double>(tokens) + 256)});
}

/// A ring of n ranks moves f(n) S at the rate of a link.
void add_calls(Calibration& c, bool across, double rate, double latency) {
  for (const CallKind kind : {CallKind::all_reduce, CallKind::reduce_scatter, CallKind::all_gather,
                              CallKind::all_to_all, CallKind::message}) {
    const double factor = kind == CallKind::all_reduce ? 1.0 : kind == CallKind::message ? 1 : 0.5;
    for (double bytes = 1024; bytes <= 1 << 30; bytes *= 32)
      c.calls.push_back(
          {across, true, kind, 2, bytes, latency + factor * bytes / (kLinkShare * rate)});
  }
  c.overlaps.push_back({across, 1});
}

}  // namespace

Calibration assumed_calibration(const PlanTarget& target) {
  const auto* links = std::find_if(kLinks.begin(), kLinks.end(), [&](const CardLinks& l) {
    return target.name.starts_with(l.name);
  });
  if (links == kLinks.end() || target.peak_flops == 0)
    throw DeckError(fmt::format("there are no assumed times for {}", target.name),
                    "measure them on such a machine: choir calibrate");
  Calibration c{.name = target.name,
                .assumed = true,
                .device = "cuda",
                .description = fmt::format(
                    "manufacturers' figures, not measured: {:.0f} % of {:.0f} TFLOP/s (16 bits), "
                    "{:.0f} % of {:.2f} TB/s of memory, {:.0f} GB/s a GPU in a node and {:.0f} "
                    "GB/s a GPU between nodes",
                    100 * kProductShare, target.peak_flops / 1e12, 100 * kStreamShare,
                    links->memory / 1e12, links->node / 1e9, links->network / 1e9),
                .ranks = 2 * target.ranks_per_node,
                .ranks_per_node = target.ranks_per_node};
  // True f32 runs beside the tensor cores, at about a sixteenth of their rate.
  for (const DType dtype : {DType::bf16, DType::f16}) add_products(c, dtype, target.peak_flops);
  add_products(c, DType::f32, target.peak_flops / 16);
  const double per_byte = 1 / (kStreamShare * links->memory);
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    c.streams.push_back({.precision = precision, .per_byte = per_byte, .step = 1e-3});
    for (const double bytes : {1e3, 1e9})
      c.updates.push_back({precision, bytes, bytes * per_byte + kLaunch});
  }
  add_calls(c, false, links->node, kNodeLatency);
  add_calls(c, true, links->network, kNetworkLatency);
  return c;
}

}  // namespace choir
