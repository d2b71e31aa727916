#include "choir/lab/rehearse/rehearse.hpp"

#include <algorithm>
#include <filesystem>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck_layout.hpp"
#include "choir/store/directory.hpp"
#include "choir/train/loop/train.hpp"
#include "choir/train/step/workplace.hpp"

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

RehearsalCase rehearsal_case(const std::string& text, const std::string& path,
                             const std::vector<std::string>& overrides, int ranks,
                             int ranks_per_node, const std::string& folder) {
  std::vector<std::string> words = overrides;
  for (const std::string& word :
       {"run.dir=" + folder + "/run", std::string("device=cpu"), std::string("fault.enable=true"),
        std::string("fault.stop_step=1")})
    words.push_back(word);
  RehearsalCase rehearsed{.deck = parse_deck(text, path, words),
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

}  // namespace choir
