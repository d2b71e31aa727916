#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/protobuf.hpp"
#include "src/report/run_formats.hpp"

namespace choir::report {
namespace {

using namespace protobuf;

/// Records in blocks of 32 KiB, in the format of LevelDB's logs.
class RecordLog {
 public:
  RecordLog() : bytes_(":W&B\xe1\xbe\0", 7) {}

  /// Adds the body of the next Record, without its number.
  void add(std::string_view body) {
    std::string record;
    put_integer(record, 1, ++records_);
    record += body;
    bool first = true;
    for (std::string_view rest = record; first || !rest.empty(); first = false) {
      if (room() < kHeader) bytes_.append(room(), '\0');
      const std::size_t size = std::min(rest.size(), room() - kHeader);
      const bool last = size == rest.size();
      append(first ? (last ? kFull : kFirst) : (last ? kLast : kMiddle), rest.substr(0, size));
      rest.remove_prefix(size);
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  static constexpr std::size_t kBlock = 32768, kHeader = 7;
  static constexpr char kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4;

  std::size_t room() const { return kBlock - bytes_.size() % kBlock; }
  void append(char type, std::string_view piece) {
    put_little_endian(bytes_, crc32(piece.data(), piece.size(), crc32(&type, 1)));
    put_little_endian(bytes_, static_cast<std::uint16_t>(piece.size()));
    bytes_ += type;
    bytes_ += piece;
  }

  std::string bytes_;
  std::uint64_t records_ = 0;
};

// Field numbers of wandb_internal.proto.
constexpr unsigned kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeaderRecord = 21;
constexpr unsigned kItem = 1, kKey = 1, kNestedKey = 2, kStepOfHistory = 2, kValueJson = 16;

/// JSON in wandb's form: non-finite values are texts.
std::string value_json(double value) {
  if (std::isfinite(value)) return fmt::format("{}", value);
  return std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

void put_item(std::string& out, unsigned key_field, std::string_view key, std::string_view json) {
  std::string item;
  put_bytes(item, key_field, key);
  put_bytes(item, kValueJson, json);
  put_bytes(out, kItem, item);
}

/// FNV-1a of the properties that all jobs of a run share.
std::string id_of(const ReportedRun& run) {
  const std::string text = run.name + "\n" + (run.starts.empty() ? "" : run.starts.front().time);
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string id(8, '0');
  for (char& digit : id) digit = kDigits[hash % kDigits.size()], hash /= kDigits.size();
  return id;
}

std::string header_body() {
  std::string version, header, body;
  put_bytes(version, 1, "choir");
  put_bytes(version, 2, "0.70.0");  // the oldest client that can read it
  put_bytes(header, 1, version);
  put_bytes(body, kHeaderRecord, header);
  return body;
}

/// The deck with one key per section.
std::string config_of(const ReportedRun& run) {
  nlohmann::ordered_json sections;
  for (const auto& [key, entry] : run.deck) {
    const std::size_t dot = key.find('.');
    const nlohmann::json value = document_of(entry.value);
    if (dot == std::string::npos) {
      sections[key] = value;
      continue;
    }
    auto& section = sections[key.substr(0, dot)];
    if (!section.is_object()) section = nlohmann::ordered_json::object();
    section[key.substr(dot + 1)] = value;
  }
  std::string config;
  for (const auto& [key, value] : sections.items()) put_item(config, kKey, key, dumped(value));
  return config;
}

std::string run_body(const ReportedRun& run, const std::string& id, std::optional<double> start) {
  std::string record, body;
  put_bytes(record, 1, id);
  put_bytes(record, 3, "choir");  // project
  put_bytes(record, 4, config_of(run));
  put_bytes(record, 7, "train");
  put_bytes(record, 8, run.name);
  if (!run.start.ranks.empty()) put_bytes(record, 13, run.start.ranks.front().host);
  if (start) {
    std::string time;
    put_integer(time, 1, static_cast<std::uint64_t>(clamped_integer(*start)));
    put_bytes(record, 17, time);
  }
  put_bytes(body, kRun, record);
  return body;
}

using Row = std::map<std::string, double>;

std::map<double, Row> rows_of(const ReportedRun& run) {
  std::map<double, Row> rows;
  for (const auto& [key, curve] : run.curves)
    for (std::size_t i = 0; i < curve.x.size(); ++i)
      if (key != "step") rows[curve.x[i]][key] = curve.y[i];
  return rows;
}

/// The tag that log.tensorboard gives to a key of metrics.jsonl.
std::string tag_of(const std::string& key) {
  static const std::map<std::string, std::string> kTags{
      {"loss", "train/loss"},           {"lr", "train/learning_rate"},
      {"grad_norm", "train/grad_norm"}, {"loss_scale", "train/loss_scale"},
      {"dt", "speed/step_seconds"},     {"tps", "speed/tokens_per_second"},
      {"mfu", "speed/mfu_percent"},     {"data", "phases/data"},
      {"dtf", "phases/forward"},        {"dtb", "phases/backward"},
      {"comm", "phases/comm"},          {"optimizer", "phases/optimizer"},
      {"other", "phases/other"},        {"mem", "memory/resident_bytes"},
      {"val_loss", "val/loss"}};
  const auto found = kTags.find(key);
  return found == kTags.end() ? "log/" + key : found->second;
}

}  // namespace

std::string tensorboard_events(const ReportedRun& run) {
  StepTimes times(run);
  std::string bytes = tensorboard::record(tensorboard::version_event(times.first().value_or(0)));
  for (const auto& [step, row] : rows_of(run)) {
    std::vector<std::pair<std::string, double>> scalars;
    for (const auto& [key, value] : row) scalars.emplace_back(tag_of(key), value);
    bytes += tensorboard::record(
        tensorboard::scalars_event(times.at(step), clamped_integer(step), scalars));
  }
  return bytes;
}

WandbRun wandb_run(const ReportedRun& run) {
  const std::string id = id_of(run);
  StepTimes times(run);
  const auto start = times.first();
  RecordLog log;
  log.add(header_body());
  log.add(run_body(run, id, start));
  Row last;
  for (const auto& [step, row] : rows_of(run)) {
    const std::int64_t number = clamped_integer(step);
    const double now = times.at(step);
    std::string history, body, place;
    put_item(history, kNestedKey, "_step", fmt::format("{}", number));
    put_item(history, kNestedKey, "_runtime", value_json(now - start.value_or(0)));
    if (start) put_item(history, kNestedKey, "_timestamp", value_json(now));
    for (const auto& [key, value] : row) {
      put_item(history, kNestedKey, key, value_json(value));
      last[key] = value;
    }
    put_integer(place, 1, static_cast<std::uint64_t>(number));
    put_bytes(history, kStepOfHistory, place);
    put_bytes(body, kHistory, history);
    log.add(body);
  }
  std::string summary, exit, body;
  for (const auto& [key, value] : last) put_item(summary, kKey, key, value_json(value));
  put_bytes(body, kSummary, summary);
  log.add(body);
  const bool failed =
      run.fate == Fate::failed || run.fate == Fate::silent || run.fate == Fate::unsaved;
  if (failed) put_integer(exit, 1, 1);
  body.clear();
  put_bytes(body, kExit, exit);
  log.add(body);

  std::array<char, 32> when{"19700101_000000"};
  const auto seconds = static_cast<std::time_t>(clamped_integer(start.value_or(0)));
  if (std::tm local{}; start && localtime_r(&seconds, &local) != nullptr)
    std::strftime(when.data(), when.size(), "%Y%m%d_%H%M%S", &local);
  return {.folder = fmt::format("offline-run-{}-{}", when.data(), id),
          .file = fmt::format("run-{}.wandb", id),
          .bytes = log.take()};
}

}  // namespace choir::report
