// Where benches write, and which device they take.
#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "choir/app/bench.hpp"
#include "choir/app/bench_baseline.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/comm/device_choice.hpp"
#include "choir/core/error.hpp"
#include "choir/core/json.hpp"

namespace choir {
namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw StorageError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)),
                     "name a file in a folder that exists and may be written");
}

void write_to(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  if (path == "-") return fmt::print("{}", text);
  std::ofstream file(path);
  file << text;
  file.close();
  if (file.fail()) refuse(path);
}

}  // namespace

void BenchFiles::add_to(CommandLine& app, bool rows) {
  app.add_option("--json", json, "also write one JSON object to this file; -: print it instead");
  if (!rows) return;
  app.add_option("--csv", csv, "also write header and rows to this file; -: print them instead");
  app.add_option("--baseline", baseline,
                 "a file of --json of an earlier run: exit code 1 where a row has become slower");
  app.add_option("--tolerance", tolerance, "a row may take so much more of its time of then")
      .within(0.0, 100.0)
      .shows_default();
}

void BenchFiles::require_writable() const {
  for (const std::string& path : {csv, json}) {
    if (path.empty() || path == "-") continue;
    if (!std::ofstream(path, std::ios::app)) refuse(path);
  }
  if (!baseline.empty()) parse_json(read_deck_text(baseline), baseline);
}

void BenchFiles::write(const std::string& csv_text, const std::string& json_text) const {
  write_to(csv, csv_text);
  write_to(json, json_text);
}

int BenchFiles::finish(const std::string& csv_text, const std::string& json_text,
                       bool valid) const {
  constexpr int kFailed = static_cast<int>(ExitCode::other);
  // Read before it is written over.
  const std::string then = baseline.empty() ? "" : read_deck_text(baseline);
  write(csv_text, json_text);
  if (baseline.empty()) return valid ? 0 : kFailed;
  const BaselineComparison comparison = compare_with_baseline(
      parse_json(then, baseline).root(), nlohmann::json::parse(json_text), tolerance);
  std::fflush(stdout);
  fmt::print(table() ? stdout : stderr, "{}", to_string(comparison));
  return valid && comparison.holds() ? 0 : kFailed;
}

BenchWords sort_words(const Arguments& words) {
  BenchWords sorted;
  for (const std::string& word : words) {
    if (word.starts_with("device=")) {
      sorted.device = word.substr(word.find('=') + 1);
    } else if (word.find('=') != std::string::npos) {
      sorted.overrides.push_back(word);
    } else if (sorted.deck.empty()) {
      sorted.deck = word;
    } else {
      throw DeckError(fmt::format("two decks are named, '{}' and '{}'", sorted.deck, word),
                      "one deck, and key.path=value behind it");
    }
  }
  return sorted;
}

std::unique_ptr<Device> bench_device(const std::string& wanted, Mesh& mesh) {
  together(mesh.world(), [&] {
    if (wanted != "auto" && wanted != "cpu" && wanted != "cuda")
      throw DeckError(fmt::format("device '{}' is not known", wanted), "auto, cpu or cuda");
  });
  const DeviceChoice choice = choose_device(mesh, {.device = wanted, .share = true});
  std::unique_ptr<Device> device;
  together(mesh.world(), [&] { device = make_device(choice.kind, choice.ordinal); });
  return device;
}

}  // namespace choir
