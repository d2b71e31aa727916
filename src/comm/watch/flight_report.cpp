#include "choir/comm/watch/flight_report.hpp"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "choir/core/clock.hpp"

namespace choir {
namespace {

const char* words_for(ProcessState state) {
  switch (state) {
    case ProcessState::stopped:
      return ", stopped by a signal";
    case ProcessState::in_disk_wait:
      return ", in an uninterruptible wait for a disk or the network";
    case ProcessState::dead:
      return ", dead";
    default:
      return "";
  }
}

bool gone(const RankFlight& rank) {
  return rank.state == ProcessState::dead || rank.state == ProcessState::stopped;
}

// True if a thread waits for the call, or will wait for it because it was started.
bool open(const CallRecord& call) {
  return call.end == 0 && call.state != CallState::queued;
}

bool waited_for(const CallRecord& call) {
  return call.state == CallState::waiting;
}

bool waits(const RankFlight& rank) {
  return std::any_of(rank.calls.begin(), rank.calls.end(), waited_for);
}

const GroupRecord* member_of(const RankFlight& rank, std::uint64_t group) {
  for (const GroupRecord& g : rank.groups)
    if (g.id == group) return &g;
  return nullptr;
}

/// True if the rank has begun the call but does something else, so that its share of the work may
/// be missing.
bool leaves(const RankFlight& rank, const CallRecord& call) {
  return std::any_of(rank.calls.begin(), rank.calls.end(), [&](const CallRecord& c) {
    return c.group == call.group && c.sequence == call.sequence && c.call == call.call &&
           c.state == CallState::started;
  });
}

struct Delay {
  const RankFlight* by = nullptr;
  const RankFlight* of = nullptr;
  const CallRecord* in = nullptr;
};

/// The pairs of ranks in which one keeps the other waiting, as far as is visible: ranks that have
/// not entered a collective in which another one waits, and ranks from which (or to which) a
/// message is awaited.
std::vector<Delay> delays(std::span<const RankFlight> ranks) {
  std::vector<Delay> found;
  const auto missing = [](const RankFlight& rank, const CallRecord& call) {
    const GroupRecord* group = member_of(rank, call.group);
    if (group == nullptr) return false;
    if (!is_collective(call.call)) return group->rank == call.peer;
    return group->entered < call.sequence || leaves(rank, call);
  };
  for (const RankFlight& waiting : ranks)
    for (const CallRecord& call : waiting.calls)
      if (waited_for(call))  // each thread may wait for a call
        for (const RankFlight& other : ranks)
          if (&other != &waiting && missing(other, call))
            found.push_back({&other, &waiting, &call});
  return found;
}

std::string ago(double from, double now) {
  return format_duration(std::max(0.0, now - from));
}

std::string last_call(const RankFlight& rank, double now) {
  if (rank.calls.empty()) return "it has made no call";
  const CallRecord& last = rank.calls.back();
  if (open(last))
    return fmt::format("its last call: {}, {} (for {})", describe(last), name_of(last.state),
                       ago(last.start, now));
  return fmt::format("its last call: {}, {} {} ago", describe(last), name_of(last.state),
                     ago(last.end > 0 ? last.end : last.start, now));
}

// "rank 2", "rank 2 on node17"
std::string place_of(const RankFlight& rank) {
  return fmt::format("rank {}{}{}", rank.world_rank, rank.host.empty() ? "" : " on ", rank.host);
}

std::string name_of(const RankFlight& rank) {
  return fmt::format("{} (process {}{})", place_of(rank), rank.process, words_for(rank.state));
}

std::string sentence(const Delay& delay, double now) {
  const RankFlight& rank = *delay.by;
  std::string text = name_of(rank) + " ";
  text += is_collective(delay.in->call)
              ? fmt::format(
                    "{} {}, where",
                    leaves(rank, *delay.in) ? "has begun but does not continue" : "has not entered",
                    describe(*delay.in))
              : fmt::format("is the other end of {}, in which", describe(*delay.in));
  return text + fmt::format(" {} has waited for {}; {}; in phase \"{}\"", place_of(*delay.of),
                            ago(delay.in->start, now), last_call(rank, now), rank.phase);
}

}  // namespace

std::string describe(const CallRecord& call) {
  const std::string bytes = format_count(static_cast<std::int64_t>(call.bytes));
  return fmt::format("{} #{} of {} ({} bytes{})", name_of(call.call), call.sequence, call.name,
                     bytes, call.peer >= 0 ? fmt::format(", rank {}", call.peer) : "");
}

std::string behind(std::span<const RankFlight> ranks) {
  const bool all_wait =
      std::all_of(ranks.begin(), ranks.end(), [](const RankFlight& r) { return r.waiting; });
  const auto suspect = [&](const RankFlight& r) { return all_wait || !r.waiting; };
  std::int64_t least = INT64_MAX, most = 0;
  bool some_wait = false;
  for (const RankFlight& rank : ranks) {
    some_wait = some_wait || !suspect(rank);
    most = std::max(most, rank.beats);
    if (suspect(rank)) least = std::min(least, rank.beats);
  }
  if (!some_wait && least == most) return "";
  std::string text;
  for (const RankFlight& rank : ranks)
    if (suspect(rank) && rank.beats == least)
      text += fmt::format("{}{} is behind, in phase \"{}\"", text.empty() ? "" : "; ",
                          place_of(rank), rank.phase);
  return text;
}

std::string culprits(std::span<const RankFlight> ranks, double now) {
  const std::vector<Delay> all = delays(ranks);
  const auto free = [](const RankFlight& r) { return gone(r) || !waits(r); };
  const bool some =
      std::any_of(all.begin(), all.end(), [&](const Delay& d) { return free(*d.by); });
  std::vector<const RankFlight*> named;
  std::string text;
  for (const Delay& delay : all) {
    if (some && !free(*delay.by)) continue;
    if (std::find(named.begin(), named.end(), delay.by) != named.end()) continue;
    named.push_back(delay.by);
    text += (text.empty() ? "" : "; ") + sentence(delay, now);
  }
  for (const RankFlight& rank : ranks)
    if (gone(rank) && std::find(named.begin(), named.end(), &rank) == named.end())
      text += fmt::format("{}{}, {}; in phase \"{}\"", text.empty() ? "" : "; ", name_of(rank),
                          last_call(rank, now), rank.phase);
  return text;
}

std::string flight_table(const RankFlight& rank, double now) {
  std::string text = fmt::format("{}\nphase: {}{}\n", name_of(rank), rank.phase,
                                 rank.waiting ? " (waits for another rank)" : "");
  if (rank.alive > 0) text += fmt::format("its watchdog was alive {} ago\n", ago(rank.alive, now));
  text += fmt::format("phases begun: {}\n", rank.beats);
  text += "\ncommunicators: rank of size, collectives begun\n";
  for (const GroupRecord& g : rank.groups)
    text += fmt::format("  {:<28} {:>5} of {:<5} {:>10}\n", g.name, g.rank, g.size, g.entered);
  text += fmt::format("\nlast calls, oldest first: seconds ago, seconds taken, state\n");
  for (const CallRecord& call : rank.calls)
    text += fmt::format("  {:>12.6f} {:>12} {:<8} {}\n", now - call.start,
                        call.end > 0 ? fmt::format("{:.6f}", call.end - call.start) : "-",
                        name_of(call.state), describe(call));
  return text;
}

ProcessState state_of_process(int process) {
  if (process <= 0) return ProcessState::unknown;
  if (kill(process, 0) != 0 && errno == ESRCH) return ProcessState::dead;
  std::FILE* file = std::fopen(fmt::format("/proc/{}/stat", process).c_str(), "re");
  if (file == nullptr) return ProcessState::unknown;
  char line[512] = {};
  const std::size_t length = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  // The line is "pid (name) S ...". The name may contain anything; the state follows the last
  // parenthesis.
  const std::string_view text(line, length);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size())
    return ProcessState::unknown;
  switch (text[name_end + 2]) {
    case 'R':
      return ProcessState::running;
    case 'T':
    case 't':
      return ProcessState::stopped;
    case 'D':
      return ProcessState::in_disk_wait;
    case 'Z':
    case 'X':
      return ProcessState::dead;
    default:
      return ProcessState::sleeping;
  }
}

}  // namespace choir
