#include "src/run/evaluation_record.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>

#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {

std::vector<std::pair<std::string, double>> values_of(const std::vector<Validation>& validations,
                                                      const std::string& prefix) {
  std::vector<std::pair<std::string, double>> values;
  for (const Validation& v : validations) {
    const std::string behind = v.name.empty() ? "" : "/" + v.name;
    values.emplace_back(prefix + "loss" + behind, v.loss);
    for (const auto& [name, value] : v.metrics) values.emplace_back(prefix + name + behind, value);
  }
  return values;
}

namespace {

/// Six digits behind the point; a negative number that is rounded to zero has no sign. A number
/// that is not finite is "nan" or "inf", as in the lines of training; it is null only in JSON.
std::string six_digits(double value) {
  std::string text = fmt::format("{:.6f}", value);
  if (text == "-0.000000") text.erase(0, 1);
  return text;
}

}  // namespace

std::string metrics_text(const std::vector<Validation>& validations) {
  const Validation& all = validations.front();
  std::string text;
  for (const auto& [name, value] : values_of(validations, "val_")) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, six_digits(value));
    if (all.perplexity && name == "val_loss")
      text += fmt::format(" perplexity={:.4f}", *all.perplexity);
  }
  for (const auto& [name, count] : all.counts) text += fmt::format(" {}={}", name, count);
  return text;
}

std::vector<std::string> lines_of(const std::vector<Validation>& validations) {
  std::vector<std::string> lines;
  const auto append = [&](const Validation& v) {
    const std::string name = v.set.empty() ? "all" : "'" + v.set + "'";
    for (const auto& [tag, text] : v.sentences)
      lines.push_back(fmt::format("{}{}{}: {}", name, tag.empty() ? "" : ", ", tag, text));
  };
  for (std::size_t i = 1; i < validations.size(); ++i) append(validations[i]);
  append(validations.front());
  return lines;
}

std::vector<EvaluationRecord> records_of(const std::vector<Validation>& validations,
                                         const EvaluationRecord& base) {
  std::vector<EvaluationRecord> records;
  for (const Validation& v : validations) {
    EvaluationRecord& record = records.emplace_back(base);
    record.set = v.name;
    record.name = v.set;
    record.kind = "validation";
    record.conditions.insert(record.conditions.end(), v.counts.begin(), v.counts.end());
    record.conditions.insert(record.conditions.end(), v.errors.begin(), v.errors.end());
    record.metrics = {{"loss", v.loss}};
    if (v.perplexity) record.metrics.emplace_back("perplexity", *v.perplexity);
    record.metrics.insert(record.metrics.end(), v.metrics.begin(), v.metrics.end());
  }
  return records;
}

std::string text_of(const EvaluationRecord& record) {
  std::string text = fmt::format("task={} kind={}", record.set, record.kind);
  for (const auto& [name, value] : record.conditions) text += fmt::format(" {}={}", name, value);
  for (const auto& [name, value] : record.metrics)
    text += fmt::format(" {}={}", name, six_digits(value));
  return text;
}

namespace {

/// With a `time` it is a line of evaluations.jsonl, else one of the standard output. The former has
/// "task" also for a validation set: all data and their only set may have the same name in "set".
std::string json_line(const EvaluationRecord& record, const std::string& time) {
  nlohmann::ordered_json json;
  json["event"] = "evaluation";
  if (!time.empty()) json["time"] = time;
  json["step"] = record.step;
  json["checkpoint"] = record.checkpoint;
  json["precision"] = record.precision;
  const std::string& set = record.name.empty() ? record.set : record.name;
  if (record.kind == "validation") json["set"] = set.empty() ? "all" : set;
  if (!record.set.empty() && (record.kind != "validation" || !time.empty()))
    json["task"] = record.set;
  json["kind"] = record.kind;
  if (!record.source.empty()) json["source"] = record.source;
  for (const auto& [name, value] : record.conditions) json[name] = value;
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();
  for (const auto& [name, value] : record.metrics) {
    if (std::isfinite(value))
      metrics[name] = value;
    else
      metrics[name] = nullptr;
  }
  json["metrics"] = metrics;
  return dumped_safely(json);
}

}  // namespace

std::string json_of(const EvaluationRecord& record) {
  return json_line(record, "");
}

std::string evaluations_file(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path folder = fs::weakly_canonical(checkpoint, failed).parent_path();
  if (failed || folder.filename() != "checkpoints") return "";
  const fs::path run = folder.parent_path();
  return fs::exists(run / "deck.json", failed) ? (run / "evaluations.jsonl").string() : "";
}

std::string keep_records(const std::vector<EvaluationRecord>& records) {
  const std::string path = records.empty() ? "" : evaluations_file(records.front().checkpoint);
  if (path.empty()) return "";
  std::string lines;
  for (const EvaluationRecord& record : records) lines += json_line(record, timestamp()) + "\n";
  return append_to_file(path, lines);
}

namespace {

using nlohmann::json;

std::string text_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// True if the line has the form of json_of(). Integers outside the range become its nearest end.
bool read_record(const std::string& line, EvaluationRecord& record) {
  constexpr std::size_t kLongest = std::size_t{1} << 20;
  if (line.size() > kLongest) return false;
  json object;
  try {
    object = read_json_line(line, "evaluations.jsonl");
  } catch (const DataError&) {
    return false;
  }
  if (!object.is_object() || text_in(object, "event") != "evaluation") return false;
  const auto step = object.find("step"), metrics = object.find("metrics");
  if (step == object.end() || !step->is_number_integer()) return false;
  if (metrics == object.end() || !metrics->is_object()) return false;
  record.set = text_in(object, "task");
  record.name = text_in(object, "set");
  record.kind = text_in(object, "kind");
  record.source = text_in(object, "source");
  record.checkpoint = text_in(object, "checkpoint");
  record.precision = text_in(object, "precision");
  record.time = text_in(object, "time");
  record.step = step->get<std::int64_t>();
  for (const auto& [name, value] : object.items())
    if (value.is_number_integer() && name != "step")
      record.conditions.emplace_back(name, value.get<std::int64_t>());
  for (const auto& [name, value] : metrics->items())
    record.metrics.emplace_back(name, value.is_number() ? value.get<double>() : NAN);
  return true;
}

/// True if one of these evaluations repeats the other: the same data, and the same results up to
/// the rounding of another layout or batch.
bool are_equal(const EvaluationRecord& a, const EvaluationRecord& b) {
  const auto identity = [](const EvaluationRecord& record) {
    return std::tie(record.set, record.step, record.kind, record.source, record.precision,
                    record.conditions);
  };
  const auto same = [](const auto& x, const auto& y) {
    constexpr double kRounding = 1e-5;
    const bool neither = std::isnan(x.second) && std::isnan(y.second);
    const double most = kRounding * std::max(1.0, std::abs(x.second));
    return x.first == y.first &&
           (neither || x.second == y.second || std::abs(x.second - y.second) <= most);
  };
  return identity(a) == identity(b) && std::ranges::equal(a.metrics, b.metrics, same);
}

}  // namespace

KeptRecords read_records(const std::string& path) {
  constexpr std::size_t kMostMiB = 64;
  KeptRecords kept;
  if (!std::filesystem::exists(path)) return kept;
  const CappedText read = read_capped_file(path, kMostMiB);
  if (!read.fault.empty()) {
    kept.note = "evaluations.jsonl " + read.fault + " and was not read";
    return kept;
  }
  std::size_t damaged = 0;
  for (const std::string& line : split(read.text, '\n')) {
    EvaluationRecord record;
    if (trim(line).empty()) continue;
    if (!read_record(line, record)) {
      ++damaged;
      continue;
    }
    std::erase_if(kept.records, [&](const EvaluationRecord& earlier) {
      if (!are_equal(earlier, record)) return false;
      record.repeats += 1 + earlier.repeats;
      return true;
    });
    kept.records.push_back(std::move(record));
  }
  std::stable_sort(kept.records.begin(), kept.records.end(),
                   [](const EvaluationRecord& a, const EvaluationRecord& b) {
                     return std::tie(a.set, a.step) < std::tie(b.set, b.step);
                   });
  if (damaged > 0)
    kept.note = fmt::format("{} of evaluations.jsonl {} damaged and skipped",
                            counted(static_cast<std::int64_t>(damaged), "line"),
                            damaged == 1 ? "is" : "are");
  return kept;
}

namespace {

std::string lines_of_worst(const WorstSamples& worst) {
  std::string lines;
  for (const WorstSample& sample : worst.samples) {
    nlohmann::ordered_json json;
    json["step"] = worst.step;
    if (!worst.source.empty()) json["source"] = worst.source;
    json["set"] = sample.set;
    json["recording"] = sample.place;
    json["errors"] = sample.errors;
    json["words"] = sample.units;
    json["reference"] = sample.reference;
    json["hypothesis"] = sample.answer;
    lines += dumped_safely(json) + "\n";
  }
  return lines;
}

}  // namespace

std::string keep_worst(const std::string& run, const WorstSamples& worst) {
  constexpr std::size_t kMostSources = 8;
  const std::string path = run + "/worst_samples.jsonl";
  std::vector<WorstSamples> all = read_worst(path);
  std::erase_if(all, [&](const WorstSamples& kept) { return kept.source == worst.source; });
  if (!worst.samples.empty()) all.push_back(worst);
  if (all.size() > kMostSources) all.erase(all.begin());
  std::error_code failed;
  if (all.empty()) {
    std::filesystem::remove(path, failed);
    return "";
  }
  std::string lines;
  for (const WorstSamples& kept : all) lines += lines_of_worst(kept);
  try {
    write_whole_file(path, lines);
    return "";
  } catch (const StorageError& error) {
    return error.what();
  }
}

std::vector<WorstSamples> read_worst(const std::string& path) {
  constexpr std::size_t kMostMiB = 16;
  std::vector<WorstSamples> all;
  if (!std::filesystem::exists(path)) return all;
  for (const std::string& line : split(read_capped_file(path, kMostMiB).text, '\n')) {
    if (trim(line).empty()) continue;
    json object;
    try {
      object = read_json_line(line, "worst_samples.jsonl");
    } catch (const DataError&) {
      continue;
    }
    const auto whole = [&](const char* key) {
      const auto found = object.find(key);
      const bool is = found != object.end() && found->is_number_integer();
      return is ? found->get<std::int64_t>() : -1;
    };
    if (!object.is_object() || whole("errors") < 0) continue;
    const std::string source = text_in(object, "source");
    if (all.empty() || all.back().source != source) all.push_back({.step = 0, .source = source});
    all.back().step = whole("step");
    all.back().samples.push_back({.set = text_in(object, "set"),
                                  .place = text_in(object, "recording"),
                                  .reference = text_in(object, "reference"),
                                  .answer = text_in(object, "hypothesis"),
                                  .errors = whole("errors"),
                                  .units = whole("words")});
  }
  return all;
}

}  // namespace choir
