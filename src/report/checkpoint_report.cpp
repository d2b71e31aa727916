// The contents of a checkpoint as text and JSON. Pure.
#include <fmt/format.h>

#include <cmath>

#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/report/checkpoint_report.hpp"

namespace choir {
namespace {

using nlohmann::ordered_json;

std::string optional_number(const std::optional<double>& value) {
  return value ? fmt::format("{:.6f}", *value) : "not measured";
}

ordered_json json_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

/// The number of parameters only: moments and counters do not belong to the model.
std::int64_t parameter_count(const Manifest& manifest) {
  std::int64_t count = 0;
  for (const TensorRecord& t : manifest.all_tensors())
    if (t.name.starts_with("parameters/")) count += t.shape.count();
  return count;
}

std::string compact(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : dumped(value);
}

/// Collects "key=value" of the members of a section and of the sections in it.
class ModelKeys {
 public:
  ModelKeys(const InspectedCheckpoint& inspected, const ordered_json& deck)
      : reads_(inspected.reads), derived_(part(deck, "derived")), sources_(part(deck, "sources")) {}

  void add(const std::string& path, const ordered_json& value) {
    std::string source;
    if (sources_.contains(path) && sources_.at(path).is_string())
      source = sources_.at(path).get<std::string>();
    if (value.is_object() && source.empty()) {
      for (const auto& [key, member] : value.items()) add(path + "." + key, member);
      return;
    }
    const bool computed = derived_.contains(path);
    const bool given = !computed && source != "default" && source != "derived";
    if (reads_ && !given && !reads_(path)) return;
    const std::string text =
        fmt::format("{}={}", printable_name(path.substr(kSection.size())),
                    printable_name(compact(computed ? derived_.at(path) : value)));
    if (given)
      given_ += "  " + text + "\n";
    else if (computed)
      computed_ += "  " + text + "\n";
    else
      defaults_ += text + " ";
  }
  /// The given values and the derived ones, a line each, then a paragraph of defaults.
  std::string text() const {
    return given_ + computed_ +
           (defaults_.empty() ? "" : "  defaults:\n" + wrap(defaults_, 100, 4));
  }

 private:
  static constexpr std::string_view kSection = "model.";
  static ordered_json part(const ordered_json& deck, const char* name) {
    return deck.contains(name) && deck[name].is_object() ? deck[name] : ordered_json::object();
  }

  const std::function<bool(const std::string&)>& reads_;
  const ordered_json derived_, sources_;
  std::string given_, computed_, defaults_;
};

/// The keys of the model: those that were given first.
std::string model_text(const InspectedCheckpoint& inspected, const ordered_json& deck) {
  if (!deck.contains("model") || !deck["model"].is_object()) return "  not in the deck\n";
  ModelKeys keys(inspected, deck);
  keys.add("model", deck["model"]);
  std::string text = keys.text();
  return text.ends_with('\n') ? text : text + "\n";
}

std::string vocabulary_line(const InspectedCheckpoint& c) {
  if (c.meta.vocabulary.empty())
    return fmt::format("none stored; {} ids (trained on token files without vocab.json)",
                       c.meta.vocab_size);
  const Vocabulary vocabulary = Vocabulary::from_json(c.meta.vocabulary, c.checkpoint.path);
  return fmt::format("{}, {} symbols, hash {:016x}", name_of(vocabulary.kind()), vocabulary.size(),
                     vocabulary.hash());
}

/// Returns "" for a checkpoint of a version without branches.
std::string branch_line(const Branch& branch) {
  if (branch.id.empty()) return {};
  if (branch.forks.empty()) return fmt::format("  branch         {}\n", branch.id);
  const Branch::Fork& fork = branch.forks.back();
  return fmt::format("  branch         {}, after step {} of {}\n", branch.id, fork.step,
                     fork.branch.empty() ? "a run without branches" : "branch " + fork.branch);
}

std::string tensor_table(const InspectedCheckpoint& c) {
  const auto& tensors = c.checkpoint.manifest.tensors;
  std::size_t width = 4;
  for (const TensorRecord& t : tensors) width = std::max(width, printable_name(t.name).size());
  std::string text = fmt::format("  {:<{}} {:>18} {:>5} {:>14}  crc32c\n", "name", width, "shape",
                                 "dtype", "bytes");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorRecord& t = tensors[i];
    const char* state = !c.verification                  ? ""
                        : c.verification->tensor_good[i] ? "  ok"
                                                         : "  DAMAGED";
    text +=
        fmt::format("  {:<{}} {:>18} {:>5} {:>14}  {:08x}{}\n", printable_name(t.name), width,
                    to_string(t.shape), name_of(t.dtype), format_count(t.bytes()), t.crc32c, state);
  }
  return text;
}

ordered_json base_list(const Manifest& manifest) {
  ordered_json list = ordered_json::array();
  for (const BaseFile& base : manifest.bases)
    list.push_back({{"path", base.path},
                    {"crc32c", fmt::format("{:08x}", base.state_crc32c)},
                    {"tensors", base.tensors.size()}});
  return list;
}

ordered_json tensor_list(const InspectedCheckpoint& c) {
  ordered_json list = ordered_json::array();
  const auto& tensors = c.checkpoint.manifest.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorRecord& t = tensors[i];
    ordered_json entry{{"name", t.name},
                       {"dtype", name_of(t.dtype)},
                       {"shape", ordered_json::array()},
                       {"bytes", t.bytes()},
                       {"offset", t.offset},
                       {"crc32c", fmt::format("{:08x}", t.crc32c)}};
    for (int dim = 0; dim < t.shape.rank(); ++dim) entry["shape"].push_back(t.shape[dim]);
    if (c.verification) entry["ok"] = static_cast<bool>(c.verification->tensor_good[i]);
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

std::string to_text(const InspectedCheckpoint& c) {
  const Manifest& m = c.checkpoint.manifest;
  const ordered_json deck = parsed_ordered_json(c.meta.deck);
  const ordered_json provenance = parsed_ordered_json(c.meta.provenance);
  std::string text = fmt::format(
      "checkpoint {}\n"
      "  step           {}\n  saved at       {}\n  layout         {}\n  deck digest    {}\n"
      "  val loss       {}\n  format         {}\n  state          {} on the disk ({} bytes, crc32c "
      "{:08x})\n",
      printable_name(c.checkpoint.path), m.step, printable_name(m.saved_at),
      printable_name(m.layout), printable_name(m.deck_hash), optional_number(m.metric),
      kCheckpointFormat, format_bytes(static_cast<double>(m.state_bytes)),
      format_count(m.state_bytes), m.state_crc32c);
  text += branch_line(m.branch);
  for (const BaseFile& base : m.bases)
    text += fmt::format("  base           {} (crc32c {:08x}) has {} more tensors\n",
                        printable_name(base.path), base.state_crc32c, base.tensors.size());
  text += "provenance\n";
  for (const auto& [key, value] : provenance.items())
    text += fmt::format("  {:<14} {}\n", printable_name(key), printable_name(compact(value)));
  text += fmt::format("model          {} parameters\n", format_count(parameter_count(m))) +
          model_text(c, deck);
  text += fmt::format("vocabulary     {}\n", vocabulary_line(c));
  text += fmt::format(
      "progress\n  step           {}\n  updates        {}\n  sequences      {}\n  skipped in a row "
      "{}\n"
      "  best val loss  {}\n",
      c.progress.step, c.progress.updates, c.progress.consumed_samples, c.progress.skipped_in_a_row,
      std::isfinite(c.progress.best_val_loss) ? fmt::format("{:.6f}", c.progress.best_val_loss)
                                              : "not measured");
  text += fmt::format("tensors        {}\n", m.tensors.size()) + tensor_table(c);
  if (!c.verification) return text + "checksums not compared; --verify reads every byte";
  return text + (c.damaged() ? "DAMAGED: " + c.verification->damage : "ok: all checksums match");
}

std::string to_json(const InspectedCheckpoint& c) {
  const Manifest& m = c.checkpoint.manifest;
  ordered_json json{
      {"path", c.checkpoint.path},
      {"step", m.step},
      {"saved_at", m.saved_at},
      {"layout", m.layout},
      {"deck_digest", m.deck_hash},
      {"val_loss", json_number(m.metric)},
      {"format_version", kCheckpointFormat},
      {"branch", m.branch.id},
      {"state_bytes", m.state_bytes},
      {"state_crc32c", fmt::format("{:08x}", m.state_crc32c)},
      {"parameters", parameter_count(m)},
      {"vocab_size", c.meta.vocab_size},
      {"progress",
       {{"step", c.progress.step},
        {"updates", c.progress.updates},
        {"consumed_samples", c.progress.consumed_samples},
        {"skipped_in_a_row", c.progress.skipped_in_a_row},
        {"best_val_loss", json_number(c.progress.best_val_loss)}}},
      {"provenance", parsed_ordered_json(c.meta.provenance)},
      {"deck", parsed_ordered_json(c.meta.deck)},
      {"vocabulary", nullptr},
      {"tensors", tensor_list(c)},
      {"bases", base_list(m)},
      {"verified", c.verification.has_value()},
      {"damage", c.damaged() ? ordered_json(c.verification->damage) : ordered_json(nullptr)}};
  if (!c.meta.vocabulary.empty()) json["vocabulary"] = parsed_ordered_json(c.meta.vocabulary);
  return dumped(json);
}

std::string to_text(const std::string& folder, const std::vector<CheckpointSummary>& list,
                    bool verified) {
  std::string text = fmt::format("{} in {}\n  {:>10} {:<19} {:>12} {:>12}  state\n",
                                 counted(list.size(), "checkpoint"), printable_name(folder), "step",
                                 "saved at", "val loss", "size");
  for (const CheckpointSummary& s : list) {
    const bool known = !s.saved_at.empty();
    text += fmt::format("  {:>10} {:<19} {:>12} {:>12}  {}{}\n", s.step,
                        known ? printable_name(s.saved_at) : "-",
                        s.val_loss ? fmt::format("{:.6f}", *s.val_loss) : "-",
                        known ? format_bytes(static_cast<double>(s.bytes)) : "-",
                        s.problem.empty() ? "valid" : "NOT VALID: " + printable_name(s.problem),
                        s.latest ? " (latest)" : "");
    for (const std::string& base : s.bases) text += fmt::format("  {:>10} {}\n", "base", base);
  }
  return text + (verified ? "every byte was compared with its checksum"
                          : "valid: manifest and sizes; --verify reads every byte");
}

std::string to_json(const std::string& folder, const std::vector<CheckpointSummary>& list,
                    bool verified) {
  ordered_json json{
      {"folder", folder}, {"verified", verified}, {"checkpoints", ordered_json::array()}};
  for (const CheckpointSummary& s : list)
    json["checkpoints"].push_back({{"path", s.path},
                                   {"step", s.step},
                                   {"saved_at", s.saved_at},
                                   {"val_loss", json_number(s.val_loss)},
                                   {"bytes", s.bytes},
                                   {"valid", s.problem.empty()},
                                   {"problem", s.problem},
                                   {"bases", s.bases},
                                   {"latest", s.latest}});
  return dumped(json);
}

}  // namespace choir
