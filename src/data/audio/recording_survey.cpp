#include "choir/data/audio/recording_survey.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "choir/comm/agreement.hpp"
#include "choir/data/audio/recording.hpp"

namespace choir {

std::vector<RecordingSurvey> survey_recordings(Communicator& world,
                                               const std::vector<TranscriptRequest>& requests,
                                               int rate) {
  std::string mine;
  for (std::size_t i = static_cast<std::size_t>(world.rank()); i < requests.size();
       i += static_cast<std::size_t>(world.size())) {
    Transcript opened;  // reuses its serialisation
    try {
      if (requests[i].fault) throw AudioError(*requests[i].fault);
      opened.seconds = Recording::open(requests[i].source, rate).seconds();
    } catch (const AudioError& error) {
      opened.fault = fmt::format("{}: {}", name_of(error.fault()), error.what());
      opened.note = error.hint();
    }
    mine += fmt::format("{} {}\n", i, serialise(opened));
  }
  std::string all;
  for (const std::string& text : gather_texts(world, mine)) all += text;
  std::uint64_t bytes = all.size();
  world.broadcast(&bytes, sizeof bytes, 0);
  all.resize(bytes);
  world.broadcast(all.data(), bytes, 0);
  std::vector<RecordingSurvey> surveys(requests.size());
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t space = all.find(' ', at), end = all.find('\n', at);
    const Transcript opened = transcript_of(all.substr(space + 1, end - space - 1));
    surveys[std::stoul(all.substr(at, space - at))] = {opened.seconds, opened.fault, opened.note};
    at = end + 1;
  }
  return surveys;
}

std::vector<std::size_t> share_of(const std::vector<RecordingSurvey>& surveys, int rank,
                                  int ranks) {
  std::vector<std::size_t> order(surveys.size()), mine;
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return surveys[a].seconds > surveys[b].seconds;
  });
  std::vector<double> load(static_cast<std::size_t>(ranks));
  for (const std::size_t i : order) {
    if (!surveys[i].fault.empty()) continue;
    const auto least = std::min_element(load.begin(), load.end());
    *least += surveys[i].seconds;
    if (least - load.begin() == rank) mine.push_back(i);
  }
  return mine;
}

std::vector<Transcript> gather_transcripts(Mesh& mesh, const std::vector<std::size_t>& mine,
                                           const std::vector<Transcript>& made,
                                           const std::vector<RecordingSurvey>& surveys) {
  std::string text;
  const Coordinates& at = mesh.coordinates();
  if (at[Axis::tensor] == 0)
    for (std::size_t i = 0; i < mine.size(); ++i)
      text += fmt::format("{} {}\n", mine[i], serialise(made[i]));
  std::vector<Transcript> all(surveys.size());
  for (std::size_t i = 0; i < surveys.size(); ++i) all[i].fault = surveys[i].fault;
  for (const std::string& part : gather_texts(mesh.world(), text))
    for (std::size_t from = 0; from < part.size();) {
      const std::size_t space = part.find(' ', from), end = part.find('\n', from);
      all[std::stoul(part.substr(from, space - from))] =
          transcript_of(part.substr(space + 1, end - space - 1));
      from = end + 1;
    }
  return all;
}

}  // namespace choir
