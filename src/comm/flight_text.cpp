// The flights of one node as JSON, and back; see flight_exchange.hpp.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "choir/comm/flight_exchange.hpp"

namespace choir {
namespace {

using Json = nlohmann::json;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Times become how long ago they were; 0 stays "not yet".
Json ago(double time, double now) {
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
                     {"start", ago(c.start, now)},
                     {"end", ago(c.end, now)},
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
          {"alive", ago(rank.alive, now)},
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

std::string flights_text(std::uint64_t launch, const std::vector<RankFlight>& flights, double now) {
  Json ranks = Json::array();
  for (const RankFlight& rank : flights) ranks.push_back(to_json(rank, now));
  const Json all{{"launch", launch}, {"written", wall_seconds()}, {"ranks", std::move(ranks)}};
  // A phase may have been cut in the middle of a letter.
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<RankFlight> flights_of_text(const std::string& text, std::uint64_t launch, double now) {
  constexpr double kLongest = 60;  // more is a wrong clock
  std::vector<RankFlight> flights;
  try {
    const Json all = Json::parse(text);
    if (all.at("launch").get<std::uint64_t>() != launch) return {};
    const double since = wall_seconds() - all.at("written").get<double>();
    for (const Json& rank : all.at("ranks"))
      flights.push_back(flight_of(rank, now - std::clamp(since, 0.0, kLongest)));
  } catch (const Json::exception&) {
    return {};
  }
  return flights;
}

}  // namespace choir
