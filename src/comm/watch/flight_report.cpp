#include "src/comm/watch/flight_report.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>
#include <unordered_map>

#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using Json = nlohmann::json;

/// The data that every rank sends to the others.
struct Place {
  std::int32_t leader = 0;
  std::array<char, 60> host{};
};

// "rank 3", "ranks 4-7", "ranks 0, 2-3"
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += text.empty() ? "" : ", ";
    text += end - i > 1 ? fmt::format("{}-{}", ranks[i], ranks[end - 1]) : std::to_string(ranks[i]);
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string report_path(const std::string& directory) {
  return directory + "/report.txt";
}

// An NFS client rereads a folder only after it has changed the folder itself.
void look_anew(const std::string& directory, int leader) {
  const std::string mark = fmt::format("{}/looking_{}", directory, leader);
  mkdir(mark.c_str(), 0777);
  rmdir(mark.c_str());
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Times are converted to durations before `now`; 0 means "not yet" and becomes null.
Json seconds_since(double time, double now) {
  return time > 0 ? Json(now - time) : Json();
}

double time_of(const Json& ago, double now) {
  return ago.is_null() ? 0 : now - ago.get<double>();
}

Json to_json(const RankFlight& rank, double now) {
  Json calls = Json::array(), groups = Json::array();
  for (const CallRecord& c : rank.calls)
    calls.push_back({{"call", static_cast<int>(c.call)},
                     {"state", static_cast<int>(c.state)},
                     {"peer", c.peer},
                     {"group", c.group},
                     {"sequence", c.sequence},
                     {"bytes", c.bytes},
                     {"start", seconds_since(c.start, now)},
                     {"end", seconds_since(c.end, now)},
                     {"name", c.name}});
  for (const GroupRecord& g : rank.groups)
    groups.push_back({{"id", g.id},
                      {"rank", g.rank},
                      {"size", g.size},
                      {"entered", g.entered},
                      {"name", g.name}});
  return {{"rank", rank.world_rank},
          {"process", rank.process},
          {"state", static_cast<int>(rank.state)},
          {"alive", seconds_since(rank.alive, now)},
          {"waiting", rank.waiting},
          {"beats", rank.beats},
          {"phase", rank.phase},
          {"calls", std::move(calls)},
          {"groups", std::move(groups)}};
}

RankFlight flight_of(const Json& json, double now) {
  RankFlight rank{.world_rank = json.at("rank"),
                  .process = json.at("process"),
                  .state = static_cast<ProcessState>(json.at("state").get<int>()),
                  .alive = time_of(json.at("alive"), now),
                  .waiting = json.at("waiting"),
                  .beats = json.at("beats"),
                  .phase = json.at("phase")};
  for (const Json& c : json.at("calls"))
    rank.calls.push_back({.call = static_cast<CommCall>(c.at("call").get<int>()),
                          .state = static_cast<CallState>(c.at("state").get<int>()),
                          .peer = c.at("peer"),
                          .group = c.at("group"),
                          .sequence = c.at("sequence"),
                          .bytes = c.at("bytes"),
                          .start = time_of(c.at("start"), now),
                          .end = time_of(c.at("end"), now),
                          .name = c.at("name")});
  for (const Json& g : json.at("groups"))
    rank.groups.push_back({.id = g.at("id"),
                           .rank = g.at("rank"),
                           .size = g.at("size"),
                           .entered = g.at("entered"),
                           .name = g.at("name")});
  return rank;
}

}  // namespace

FlightExchange::FlightExchange(Communicator& world, int leader, std::string directory)
    : directory_(std::move(directory)), leader_(leader) {
  if (world.rank() == 0) {
    unlink(report_path(directory_).c_str());
    std::random_device random;
    launch_ = std::uint64_t{random()} << 32 | random();
  }
  world.broadcast(&launch_, sizeof launch_, 0);
  std::vector<Place> places(static_cast<std::size_t>(world.size()));
  Place& mine = places[static_cast<std::size_t>(world.rank())];
  mine.leader = leader;
  const std::string host = host_name();
  std::memcpy(mine.host.data(), host.data(), std::min(host.size(), mine.host.size() - 1));
  world.all_gather(places.data(), sizeof(Place), DType::u8);
  std::unordered_map<int, std::size_t> node_of_leader;
  for (int r = 0; r < world.size(); ++r) {
    const Place& place = places[static_cast<std::size_t>(r)];
    const auto [node, fresh] = node_of_leader.emplace(place.leader, nodes_.size());
    if (fresh) nodes_.push_back({.leader = place.leader, .ranks = {}, .host = place.host.data()});
    nodes_[node->second].ranks.push_back(r);
  }
}

std::string FlightExchange::path_of(int leader) const {
  return fmt::format("{}/seen_by_{}.json", directory_, leader);
}

// The file is written under another name first, so that nobody reads an incomplete one.
std::string FlightExchange::leave(const std::vector<RankFlight>& flights) const {
  const std::string path = path_of(leader_), part = path + ".part";
  unlink(part.c_str());  // opening a pipe of that name would block
  std::FILE* file = std::fopen(part.c_str(), "wxe");
  if (file == nullptr) return fmt::format("cannot write {}: {}", part, std::strerror(errno));
  const std::string text = flights_text(launch_, flights, now_seconds());
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written || std::rename(part.c_str(), path.c_str()) != 0)
    return fmt::format("cannot write {}: {}", path, std::strerror(errno));
  return {};
}

bool FlightExchange::claim() const {
  const int file =
      open(report_path(directory_).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return false;
  close(file);
  return true;
}

void FlightExchange::keep(const std::string& report) const {
  std::FILE* file = std::fopen(report_path(directory_).c_str(), "we");
  if (file == nullptr) return;  // the report is also on standard error
  std::fputs((printable(report) + "\n").c_str(), file);
  std::fclose(file);
}

bool FlightExchange::read(const Seen& node, std::vector<RankFlight>& flights) const {
  struct stat status {};
  if (::stat(path_of(node.leader).c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  std::ifstream file(path_of(node.leader), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<RankFlight> found = flights_of_text(text, launch_, now_seconds());
  for (RankFlight& rank : found) {
    rank.host = node.host;
    flights.push_back(std::move(rank));
  }
  return !found.empty();
}

FlightExchange::Gathered FlightExchange::gather(double seconds) const {
  constexpr std::chrono::milliseconds kBetween{50};
  Gathered all;
  std::vector<const Seen*> missing;
  for (const Seen& node : nodes_) missing.push_back(&node);
  for (const double until = now_seconds() + seconds;;) {
    std::erase_if(missing, [&](const Seen* node) { return read(*node, all.flights); });
    if (missing.empty() || now_seconds() >= until) break;
    std::this_thread::sleep_for(kBetween);
    look_anew(directory_, leader_);
  }
  for (const Seen* node : missing)
    all.silent.push_back(ranks_text(node->ranks) + " on " + node->host);
  std::sort(all.flights.begin(), all.flights.end(),
            [](const auto& a, const auto& b) { return a.world_rank < b.world_rank; });
  return all;
}

std::string report_of_all(const FlightExchange::Gathered& gathered, double now) {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
  };
  add(behind(gathered.flights));
  add(culprits(gathered.flights, now));
  if (!gathered.silent.empty())
    add(fmt::format("nothing came from {}: stopped, dead, cut off, or still within their time",
                    join(gathered.silent, ", ")));
  return text.empty() ? "no rank is seen to keep the others waiting" : text;
}

std::string flights_text(std::uint64_t launch, const std::vector<RankFlight>& flights, double now) {
  Json ranks = Json::array();
  for (const RankFlight& rank : flights) ranks.push_back(to_json(rank, now));
  const Json all{{"launch", launch}, {"written", wall_seconds()}, {"ranks", std::move(ranks)}};
  // A phase may have been cut in the middle of a character.
  return dumped_safely(all);
}

std::vector<RankFlight> flights_of_text(const std::string& text, std::uint64_t launch, double now) {
  constexpr double kLongest = 60;
  std::vector<RankFlight> flights;
  try {
    const Json all = parsed_json(text);
    if (all.at("launch").get<std::uint64_t>() != launch) return {};
    double since = wall_seconds() - all.at("written").get<double>();
    // The wall clocks of the two nodes disagree, so it was a moment ago.
    if (since < 0 || since > kLongest) since = 0;
    for (const Json& rank : all.at("ranks")) flights.push_back(flight_of(rank, now - since));
  } catch (const Json::exception&) {
    return {};
  }
  return flights;
}

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
