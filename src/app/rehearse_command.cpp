// choir rehearse DECK.json [key.path=value ...] --ranks N
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/app/bench.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_document.hpp"
#include "src/core/output.hpp"
#include "src/core/signals.hpp"
#include "src/lab/rehearse/rehearse.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/store/directory.hpp"

namespace choir {
namespace {

struct RehearseRequest {
  const FamilyTable& families;
  Arguments words;
  int ranks = 0, ranks_per_node = 8;
  BenchFiles files;
};

int play(const RehearsalCase& rehearsed, int rank, const std::string& result) {
  return with_mpi([&](MpiSession&) {
    const SignalThread signals;  // the parent's thread does not exist in this process
    write_text_file(result, rank_json(play_rank(rehearsed, rank)));
    return 0;
  });
}

/// Simulates a rank in a process of its own, whose memory is that of the rank alone. This process
/// has not started MPI.
RehearsedRank play_apart(const RehearsalCase& rehearsed, int rank) {
  const std::string result = fmt::format("{}/rank_{}.json", rehearsed.folder, rank);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0)
    throw Error(ExitCode::other, fmt::format("cannot start a process: {}", std::strerror(errno)),
                "look at `ulimit -u`");
  if (child == 0) {
    const int code = play(rehearsed, rank, result);
    std::fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  struct rusage used {};
  while (wait4(child, &status, 0, &used) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status))
    throw Error(
        ExitCode::other,
        fmt::format("the process of rank {} was ended by signal {}", rank, WTERMSIG(status)),
        "it may have run out of memory: use a smaller deck, or fewer ranks");
  if (WEXITSTATUS(status) != 0)
    throw Error(static_cast<ExitCode>(WEXITSTATUS(status)),
                fmt::format("rank {} of {} failed", rank, rehearsed.layout.ranks()),
                "its message is above");
  RehearsedRank played = rank_of_json(read_text_file(result));
  played.peak = std::int64_t{used.ru_maxrss} * 1024;
  return played;
}

int rehearse(const RehearseRequest& request) {
  const BenchWords words = sort_words(request.words);
  if (words.deck.empty())
    throw DeckError("no deck given", program_name() + " rehearse inputs/debug.json --ranks 1000");
  if (launcher_world_size().value_or(1) > 1)
    throw DeckError("choir rehearse runs on a single process", "start it without mpiexec");
  if (!words.device.empty() && words.device != "cpu")
    throw DeckError("device=" + words.device + ": rehearsals compute on the CPU",
                    "leave device out");
  request.files.require_writable();
  const RehearsalFolder folder;
  RehearsalCase rehearsed =
      rehearsal_case(request.families, read_deck_with_includes(words.deck), words.deck,
                     words.overrides, request.ranks, request.ranks_per_node, folder.path());
  tell_replacement(replace_missing_text(rehearsed.deck), 0);
  std::vector<RehearsedRank> played;
  const std::vector<int> chosen = ranks_to_play(rehearsed.layout);
  for (const int rank : chosen) {
    print_safely(stderr, "rehearse: rank {} of {}, {} of {} to play\n", rank,
                 rehearsed.layout.ranks(), played.size() + 1, chosen.size());
    if (!played.empty()) reopen_checkpoint(rehearsed);
    played.push_back(play_apart(rehearsed, rank));
  }
  if (request.files.table()) print_safely("{}", to_string(rehearsed, played));
  request.files.write("", to_json(rehearsed, played));
  return 0;
}

}  // namespace

int rehearse_command(const Invocation& call) {
  CommandLine app(
      "Rehearses a job of any number of ranks on one process: a few of its ranks run start, one "
      "step, save and summary, and the report shows what each would call, send, write and hold in "
      "memory. The other ranks are assumed to hold the same data, so the losses are meaningless.",
      "choir rehearse");
  RehearseRequest request{.families = call.families};
  app.add_option("words", request.words, "deck, and any number of key.path=value");
  app.add_option("--ranks", request.ranks, "ranks of the job").required().within(1, 1 << 20);
  app.add_option("--ranks-per-node", request.ranks_per_node, "ranks per node of the job")
      .shows_default()
      .within(1, 1 << 20);
  add_file_options(app, request.files, false);
  if (const auto code = parse(app, call)) return *code;
  return without_mpi([&] { return rehearse(request); });
}

}  // namespace choir
