// Playing of single ranks of a large job, and the report of what each of them cost.

#include "src/lab/rehearse/rehearse.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/directory.hpp"
#include "src/train/loop/train.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

std::int64_t files_in(const std::string& folder) {
  std::int64_t files = 0;
  std::error_code none;
  for (fs::recursive_directory_iterator at(folder, none), end; at != end; ++at)
    files += at->is_regular_file();
  return files;
}

}  // namespace

RehearsalFolder::RehearsalFolder()
    : path_((fs::temp_directory_path() / "choir_rehearsal_XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr)
    throw StorageError(fmt::format("cannot create {}: {}", path_, std::strerror(errno)),
                       "TMPDIR sets the directory of temporary files");
}

RehearsalFolder::~RehearsalFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

RehearsalCase rehearsal_case(const FamilyTable& families, const std::string& text,
                             const std::string& path, const std::vector<std::string>& overrides,
                             int ranks, int ranks_per_node, const std::string& folder) {
  std::vector<std::string> words = overrides;
  for (const std::string& word :
       {"run.dir=" + folder + "/run", std::string("device=cpu"), std::string("fault.enable=true"),
        std::string("fault.stop_step=1")})
    words.push_back(word);
  RehearsalCase rehearsed{.deck = parse_deck(families, text, path, words),
                          .layout = {},
                          .ranks_per_node = std::min(ranks, ranks_per_node),
                          .folder = folder};
  rehearsed.layout = layout_of(rehearsed.deck, ranks);
  return rehearsed;
}

std::vector<int> ranks_to_play(const Layout& layout) {
  Coordinates middle;
  for (int a = 0; a < kAxes; ++a)
    middle.at[static_cast<std::size_t>(a)] = layout.size(static_cast<Axis>(a)) / 2;
  std::vector<int> ranks{0, layout.rank(middle), layout.ranks() - 1};
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

RehearsedRank play_rank(const RehearsalCase& rehearsed, int rank) {
  const double started = now_seconds();
  const std::string run = rehearsed.folder + "/run";
  const std::int64_t files = files_in(run);
  RehearsedRank played{.rank = rank};
  Rehearsal book(rank, rehearsed.folder + "/script");
  book.enter("mesh");
  {
    Workplace place;
    place.mesh = Mesh::rehearsed(rehearsed.layout, rank, rehearsed.ranks_per_node, book);
    choose_threads(place.mesh->node());
    open_device(place, rehearsed.deck);
    Logger log(rank == 0);
    const ExitCode code = train(rehearsed.deck, place, log, started);
    if (code != ExitCode::resubmit && code != ExitCode::done)
      throw Error(code,
                  fmt::format("rank {} ended with exit code {}", rank, static_cast<int>(code)), "");
  }
  played.phases = book.finish();
  played.seconds = now_seconds() - started;
  played.files = files_in(run) - files;
  return played;
}

void reopen_checkpoint(const RehearsalCase& rehearsed) {
  const CheckpointDirectory checkpoints(rehearsed.folder + "/run/checkpoints");
  for (const std::int64_t step : checkpoints.steps())
    fs::rename(checkpoints.final_path(step), checkpoints.temporary_path(step));
}

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const RehearsedPhase& phase) {
  Json groups = Json::array();
  for (const RehearsedGroup& group : phase.groups)
    groups.push_back({{"name", group.name},
                      {"ranks", group.ranks},
                      {"calls", group.calls},
                      {"bytes", group.bytes}});
  return {{"name", phase.name},
          {"seconds", phase.seconds},
          {"resident", phase.resident},
          {"calls", phase.calls()},
          {"bytes", phase.bytes()},
          {"file_calls", phase.file_calls},
          {"file_bytes", phase.file_bytes},
          {"groups", std::move(groups)}};
}

Json json_of(const RehearsedRank& rank) {
  Json phases = Json::array();
  for (const RehearsedPhase& phase : rank.phases) phases.push_back(json_of(phase));
  return {{"rank", rank.rank},
          {"seconds", rank.seconds},
          {"peak", rank.peak},
          {"files", rank.files},
          {"phases", std::move(phases)}};
}

int nodes_of(const RehearsalCase& rehearsed) {
  return (rehearsed.layout.ranks() + rehearsed.ranks_per_node - 1) / rehearsed.ranks_per_node;
}

std::string line(const std::string& label, double seconds, std::int64_t memory, std::int64_t calls,
                 double bytes, std::int64_t file_calls, double file_bytes) {
  return fmt::format("  {:<20} {:>9} {:>10} {:>8} {:>10} {:>10} {:>10}\n", label,
                     format_duration(seconds), format_bytes(static_cast<double>(memory)),
                     format_count(calls), format_bytes(bytes), format_count(file_calls),
                     format_bytes(file_bytes));
}

std::string table_of(const RehearsedRank& rank) {
  std::string text;
  std::int64_t calls = 0, file_calls = 0;
  double bytes = 0, file_bytes = 0;
  for (const RehearsedPhase& phase : rank.phases) {
    text += line(fmt::format("  {}", phase.name), phase.seconds, phase.resident, phase.calls(),
                 phase.bytes(), phase.file_calls, phase.file_bytes);
    calls += phase.calls(), bytes += phase.bytes();
    file_calls += phase.file_calls, file_bytes += phase.file_bytes;
  }
  return line(fmt::format("rank {}", rank.rank), rank.seconds, rank.peak, calls, bytes, file_calls,
              file_bytes) +
         text;
}

/// Formats groups: "dp of 2,500 ranks: 14 calls, 3.2 MiB".
std::string groups_of(const RehearsedPhase& phase) {
  std::vector<std::string> texts;
  for (const RehearsedGroup& group : phase.groups)
    texts.push_back(fmt::format("{} of {} ranks: {} calls, {}", group.name,
                                format_count(group.ranks), format_count(group.calls),
                                format_bytes(group.bytes)));
  return join(texts, "; ");
}

}  // namespace

std::string rank_json(const RehearsedRank& rank) {
  return dumped(json_of(rank));
}

RehearsedRank rank_of_json(const std::string& text) {
  const Json json = parsed_ordered_json(text);
  RehearsedRank rank{.rank = json.at("rank"),
                     .seconds = json.at("seconds"),
                     .peak = json.at("peak"),
                     .files = json.at("files")};
  for (const Json& phase : json.at("phases")) {
    RehearsedPhase& to =
        rank.phases.emplace_back(RehearsedPhase{.name = phase.at("name"),
                                                .seconds = phase.at("seconds"),
                                                .resident = phase.at("resident"),
                                                .file_calls = phase.at("file_calls"),
                                                .file_bytes = phase.at("file_bytes")});
    for (const Json& group : phase.at("groups"))
      to.groups.push_back({.name = group.at("name"),
                           .ranks = group.at("ranks"),
                           .calls = group.at("calls"),
                           .bytes = group.at("bytes")});
  }
  return rank;
}

std::string to_string(const RehearsalCase& rehearsed, const std::vector<RehearsedRank>& ranks) {
  std::string text = fmt::format(
      "REHEARSED: {} on {} ranks, {} a node, {} nodes\n  {:<20} {:>9} {:>10} {:>8} {:>10} {:>10} "
      "{:>10}\n",
      rehearsed.layout.to_string(), format_count(rehearsed.layout.ranks()),
      rehearsed.ranks_per_node, format_count(nodes_of(rehearsed)), "", "time", "memory", "calls",
      "bytes", "file calls", "file bytes");
  for (const RehearsedRank& rank : ranks) text += table_of(rank);
  for (const RehearsedRank& rank : ranks) {
    text += fmt::format("rank {} creates {} files\n", rank.rank, format_count(rank.files));
    for (const RehearsedPhase& phase : rank.phases)
      if (phase.name == "step")
        text += fmt::format("rank {} in a step: {}\n", rank.rank, groups_of(phase));
  }
  return text;
}

std::string to_json(const RehearsalCase& rehearsed, const std::vector<RehearsedRank>& ranks) {
  Json played = Json::array();
  for (const RehearsedRank& rank : ranks) played.push_back(json_of(rank));
  const Json json{
      {"layout", rehearsed.layout.to_string()},
      {"ranks", rehearsed.layout.ranks()},
      {"ranks_per_node", rehearsed.ranks_per_node},
      {"played", std::move(played)},
      {"provenance", parsed_ordered_json(build_provenance(MpiSession::library_version()))}};
  return dumped(json, 2) + "\n";
}

}  // namespace choir
