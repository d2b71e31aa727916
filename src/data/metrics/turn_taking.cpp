#include "src/data/metrics/turn_taking.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "choir/core/error.hpp"

namespace choir {
namespace {

/// The scalar counts, in their order.
constexpr std::array kSingles{
    &TurnCounts::dialogues, &TurnCounts::turns,        &TurnCounts::hits,
    &TurnCounts::missed,    &TurnCounts::false_starts, &TurnCounts::more,
    &TurnCounts::exact,     &TurnCounts::barge_ins,    &TurnCounts::talked_on};
constexpr std::array kHistograms{&TurnCounts::latency, &TurnCounts::stop};

void note(std::array<std::int64_t, TurnCounts::kLongest>& histogram, std::int64_t frames) {
  const auto last = static_cast<std::int64_t>(histogram.size()) - 1;
  ++histogram[static_cast<std::size_t>(std::clamp<std::int64_t>(frames, 0, last))];
}

bool speaks(std::span<const UserSpan> user, std::int64_t frame) {
  return std::any_of(user.begin(), user.end(),
                     [&](const UserSpan& span) { return span.begin <= frame && frame < span.end; });
}

/// The end of the user's last speech before `frame`, where the agent should begin; -1 if it never
/// spoke.
std::int64_t stopped_before(std::span<const UserSpan> user, std::int64_t frame) {
  std::int64_t last = -1;
  for (const UserSpan& span : user)
    if (span.end <= frame) last = std::max(last, span.end);
  return last;
}

/// For each interruption of a reference turn by the user: is the agent speaking then, and when does
/// it stop?
void count_barge_ins(std::span<const FrameTurn> reference, std::span<const FrameTurn> said,
                     std::span<const UserSpan> user, std::int64_t frames, TurnCounts& counts) {
  for (const UserSpan& span : user) {
    const auto breaks_into = [&](const FrameTurn& turn) {
      return turn.begin < span.begin && span.begin < turn.end;
    };
    if (std::none_of(reference.begin(), reference.end(), breaks_into)) continue;
    ++counts.barge_ins;
    const auto heard = std::find_if(said.begin(), said.end(), breaks_into);
    if (heard == said.end()) continue;  // the agent was silent
    if (heard->end >= frames)
      ++counts.talked_on;
    else
      note(counts.stop, heard->end - span.begin);
  }
}

}  // namespace

TurnCounts& TurnCounts::operator+=(const TurnCounts& other) {
  for (const auto member : kSingles) this->*member += other.*member;
  for (const auto member : kHistograms)
    for (std::size_t i = 0; i < kLongest; ++i) (this->*member)[i] += (other.*member)[i];
  return *this;
}

std::vector<std::int64_t> TurnCounts::integers() const {
  std::vector<std::int64_t> all;
  for (const auto member : kSingles) all.push_back(this->*member);
  for (const auto member : kHistograms)
    all.insert(all.end(), (this->*member).begin(), (this->*member).end());
  return all;
}

TurnCounts TurnCounts::of_integers(std::span<const std::int64_t> integers) {
  CHOIR_CHECK(integers.size() == kSingles.size() + kHistograms.size() * kLongest,
              "{} integers are no counts of turns", integers.size());
  TurnCounts counts;
  auto at = integers.begin();
  for (const auto member : kSingles) counts.*member = *at++;
  for (const auto member : kHistograms) {
    std::copy_n(at, kLongest, (counts.*member).begin());
    at += kLongest;
  }
  return counts;
}

std::int64_t median_of(std::span<const std::int64_t> histogram) {
  const std::int64_t total = std::accumulate(histogram.begin(), histogram.end(), std::int64_t{0});
  std::int64_t before = 0;
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    before += histogram[i];
    if (total > 0 && 2 * before >= total) return static_cast<std::int64_t>(i);
  }
  return -1;
}

std::vector<std::pair<std::string, double>> TurnCounts::metrics() const {
  const auto share = [&](std::int64_t n) {
    return static_cast<double>(n) / static_cast<double>(std::max<std::int64_t>(turns, 1));
  };
  std::vector<std::pair<std::string, double>> list{{"turn_hits", share(hits)},
                                                   {"false_starts", share(false_starts)},
                                                   {"missed_turns", share(missed)},
                                                   {"text_exact", share(exact)}};
  if (const std::int64_t median = median_of(latency); median >= 0)
    list.emplace_back("latency_frames", static_cast<double>(median));
  if (const std::int64_t median = median_of(stop); median >= 0)
    list.emplace_back("stop_frames", static_cast<double>(median));
  return list;
}

std::vector<std::int64_t> answers_to(std::span<const FrameTurn> reference,
                                     std::span<const FrameTurn> said, std::int64_t frames) {
  constexpr std::int64_t kNear = TurnCounts::kNear;
  std::vector<std::int64_t> answers;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const std::int64_t from = reference[i].begin - kNear;
    const std::int64_t until = i + 1 < reference.size() ? reference[i + 1].begin - kNear : frames;
    const auto answer = std::find_if(said.begin(), said.end(), [&](const FrameTurn& turn) {
      return turn.begin >= from && turn.begin < until;
    });
    answers.push_back(answer == said.end() ? -1 : answer - said.begin());
  }
  return answers;
}

TurnCounts count_turns(std::span<const FrameTurn> reference, std::span<const FrameTurn> said,
                       std::span<const UserSpan> user, std::int64_t frames) {
  TurnCounts counts;
  counts.dialogues = 1;
  counts.turns = std::ssize(reference);
  std::vector<bool> matched(said.size(), false), hit(said.size(), false);
  const std::vector<std::int64_t> answers = answers_to(reference, said, frames);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const FrameTurn& turn = reference[i];
    if (answers[i] < 0) {
      ++counts.missed;
      continue;
    }
    const auto at = static_cast<std::size_t>(answers[i]);
    const FrameTurn& answer = said[at];
    matched[at] = true;
    hit[at] = std::abs(answer.begin - turn.begin) <= TurnCounts::kNear;
    counts.hits += hit[at];
    counts.exact += answer.ids == turn.ids;
    if (const std::int64_t from = stopped_before(user, turn.begin); from >= 0)
      note(counts.latency, answer.begin - from);
  }
  for (std::size_t i = 0; i < said.size(); ++i) {
    const bool early = !hit[i] && speaks(user, said[i].begin);
    counts.false_starts += early;
    counts.more += !early && !matched[i];
  }
  count_barge_ins(reference, said, user, frames, counts);
  return counts;
}

namespace {

FrameTurn frames_of(const DialogueTurn& turn, const FrameClock& clock) {
  return {clock.frame_at(turn.start), clock.frame_at(turn.start + turn.duration), {}};
}

void append(std::string& words, const std::string& more) {
  if (!words.empty() && !more.empty()) words += ' ';
  words += more;
}

/// Processes the turns of the reference one after the other.
class Listener {
 public:
  Listener(const FrameClock& clock, std::vector<UserSpan> user)
      : clock_(clock), user_(std::move(user)) {}

  /// `answer`: the agent's turn that answers it; nullptr: none.
  void hear(const DialogueTurn& turn, const FrameTurn* answer) {
    const FrameTurn frames = frames_of(turn, clock_);
    const auto breaks_in = std::find_if(user_.begin(), user_.end(), [&](const UserSpan& span) {
      return frames.begin < span.begin && span.begin < frames.end;
    });
    if (breaks_in == user_.end() || turn.words.empty()) return append(heard.words, turn.text);
    const std::int64_t late = answer ? answer->begin - frames.begin : 0;
    const bool heeds = answer && answer->end > breaks_in->begin;
    std::int64_t until = answer ? answer->begin + 1 : 0;  // the frame of BOS has no sound
    for (const DialogueWord& word : turn.words) {
      const std::int64_t end = clock_.frame_at(word.start + word.duration) + late;
      if (heeds && end > answer->end) break;
      append(heard.words, word.text);
      until = std::max(until, end);
    }
    if (answer && until < answer->end) heard.unheard.push_back({until, answer->end});
  }

  HeardReference heard;

 private:
  FrameClock clock_;
  std::vector<UserSpan> user_;
};

}  // namespace

std::vector<UserSpan> user_spans(std::span<const DialogueTurn> turns, const FrameClock& clock) {
  std::vector<UserSpan> spans;
  for (const DialogueTurn& turn : turns) {
    if (turn.agent) continue;
    const FrameTurn frames = frames_of(turn, clock);
    spans.push_back({frames.begin, frames.end});
  }
  return spans;
}

HeardReference heard_reference(std::span<const DialogueTurn> turns, const FrameClock& clock,
                               std::span<const FrameTurn> said, std::int64_t frames) {
  std::vector<const DialogueTurn*> agent;
  std::vector<FrameTurn> reference;
  for (const DialogueTurn& turn : turns) {
    if (!turn.agent) continue;
    agent.push_back(&turn);
    reference.push_back(frames_of(turn, clock));
  }
  const std::vector<std::int64_t> answers = answers_to(reference, said, frames);
  Listener listener(clock, user_spans(turns, clock));
  for (std::size_t i = 0; i < agent.size(); ++i)
    listener.hear(*agent[i],
                  answers[i] < 0 ? nullptr : &said[static_cast<std::size_t>(answers[i])]);
  return std::move(listener.heard);
}

}  // namespace choir
