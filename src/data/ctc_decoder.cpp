#include "choir/data/ctc_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

/// All prefixes met, as a tree: a prefix is a node, its labels those on the way to the root.
struct Node {
  std::int32_t parent, label;
  std::int64_t length;
};

/// Where the last label of a path was heard, and so on back; shared by paths that go on from it.
struct Heard {
  std::int32_t before;
  std::int64_t first, last;
};

/// Of one way to end (in blank or in the last label): ln p over all paths, and the likeliest of
/// them.
struct Ending {
  double all = kNever, best = kNever;
  std::int32_t heard = -1;
};

struct Prefix {
  std::int32_t node;
  Ending blank, label;
  double all() const { return log_add(blank.all, label.all); }
};

class BeamSearch {
 public:
  BeamSearch(std::int64_t vocabulary, const CtcBeamSearch& options)
      : vocabulary_(vocabulary), options_(options) {
    nodes_.push_back({-1, -1, 0});
    beam_.push_back({0, {.all = 0, .best = 0}, {}});
  }

  void frame(std::int64_t t, std::span<const float> y) {
    next_.clear(), place_.clear();
    candidates_.clear();
    for (std::int32_t c = 0; c + 1 < vocabulary_; ++c)
      if (static_cast<double>(y[static_cast<std::size_t>(c)]) >= options_.least)
        candidates_.push_back(c);
    const double blank = static_cast<double>(y[static_cast<std::size_t>(vocabulary_ - 1)]);
    for (const Prefix& from : beam_) {
      Prefix& same = at(from.node);
      add(same.blank, from.blank, blank), add(same.blank, from.label, blank);
      const std::int32_t last = nodes_[static_cast<std::size_t>(from.node)].label;
      if (last >= 0 && from.label.all > kNever)
        add(same.label, prolonged(from.label, t),
            static_cast<double>(y[static_cast<std::size_t>(last)]));
      for (const std::int32_t c : candidates_) {
        const double p = static_cast<double>(y[static_cast<std::size_t>(c)]);
        const bool repeats = c == last;
        if (repeats && from.blank.all == kNever) continue;
        Prefix& longer = at(child(from.node, c));
        add(longer.label, begun(from.blank, t), p);
        if (!repeats && from.label.all > kNever) add(longer.label, begun(from.label, t), p);
      }
    }
    keep(options_.beam);
  }

  std::vector<CtcHypothesis> results() {
    next_ = beam_;
    keep(options_.best);
    std::vector<CtcHypothesis> found;
    for (const Prefix& prefix : beam_) found.push_back(hypothesis(prefix));
    return found;
  }

 private:
  /// The entry of a prefix in the next beam.
  Prefix& at(std::int32_t node) {
    const auto [place, added] = place_.try_emplace(node, next_.size());
    if (added) next_.push_back({node, {}, {}});
    return next_[place->second];
  }
  std::int32_t child(std::int32_t node, std::int32_t label) {
    const auto key = (static_cast<std::uint64_t>(node) << 32) | static_cast<std::uint32_t>(label);
    const auto [place, added] =
        children_.try_emplace(key, static_cast<std::int32_t>(nodes_.size()));
    if (added) nodes_.push_back({node, label, nodes_[static_cast<std::size_t>(node)].length + 1});
    return place->second;
  }
  static void add(Ending& to, const Ending& from, double p) {
    to.all = log_add(to.all, from.all + p);
    if (from.best + p > to.best) to.best = from.best + p, to.heard = from.heard;
  }
  Ending begun(Ending from, std::int64_t t) {
    if (from.all == kNever) return from;
    heard_.push_back({from.heard, t, t});
    from.heard = static_cast<std::int32_t>(heard_.size()) - 1;
    return from;
  }
  Ending prolonged(Ending from, std::int64_t t) {
    const Heard old = heard_[static_cast<std::size_t>(from.heard)];
    heard_.push_back({old.before, old.first, t});
    from.heard = static_cast<std::int32_t>(heard_.size()) - 1;
    return from;
  }
  std::vector<std::int32_t> labels(std::int32_t node) const {
    std::vector<std::int32_t> list;
    for (; node > 0; node = nodes_[static_cast<std::size_t>(node)].parent)
      list.push_back(nodes_[static_cast<std::size_t>(node)].label);
    std::reverse(list.begin(), list.end());
    return list;
  }
  /// The likeliest `count` of next_, best first.
  void keep(std::int64_t count) {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t i = 0; i < next_.size(); ++i) order.emplace_back(next_[i].all(), i);
    const auto before = [this](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first > b.first;
      const std::int32_t x = next_[a.second].node, y = next_[b.second].node;
      const std::int64_t lengths[2] = {nodes_[static_cast<std::size_t>(x)].length,
                                       nodes_[static_cast<std::size_t>(y)].length};
      return lengths[0] != lengths[1] ? lengths[0] < lengths[1] : labels(x) < labels(y);
    };
    const auto kept =
        static_cast<std::ptrdiff_t>(std::min(order.size(), static_cast<std::size_t>(count)));
    std::partial_sort(order.begin(), order.begin() + kept, order.end(), before);
    beam_.clear();
    for (std::ptrdiff_t i = 0; i < kept; ++i)
      beam_.push_back(next_[order[static_cast<std::size_t>(i)].second]);
  }
  CtcHypothesis hypothesis(const Prefix& prefix) const {
    CtcHypothesis found;
    found.log_probability = prefix.all();
    const Ending& end = prefix.blank.best > prefix.label.best ? prefix.blank : prefix.label;
    std::int32_t heard = end.heard;
    for (std::int32_t node = prefix.node; node > 0;
         node = nodes_[static_cast<std::size_t>(node)].parent) {
      const Heard& when = heard_[static_cast<std::size_t>(heard)];
      found.labels.push_back({nodes_[static_cast<std::size_t>(node)].label, when.first, when.last});
      heard = when.before;
    }
    std::reverse(found.labels.begin(), found.labels.end());
    return found;
  }

  std::int64_t vocabulary_;
  CtcBeamSearch options_;
  std::vector<Node> nodes_;
  std::vector<Heard> heard_;
  std::unordered_map<std::uint64_t, std::int32_t> children_;
  std::vector<Prefix> beam_, next_;
  std::unordered_map<std::int32_t, std::size_t> place_;
  std::vector<std::int32_t> candidates_;
};

}  // namespace

std::vector<std::int32_t> CtcHypothesis::ids() const {
  std::vector<std::int32_t> list;
  for (const TimedLabel& label : labels) list.push_back(label.label);
  return list;
}

std::vector<TimedLabel> ctc_collapse(std::span<const std::int32_t> best, std::int32_t blank) {
  std::vector<TimedLabel> labels;
  for (std::size_t t = 0; t < best.size(); ++t) {
    if (best[t] == blank) continue;
    const auto frame = static_cast<std::int64_t>(t);
    if (t > 0 && best[t] == best[t - 1])
      labels.back().last = frame;
    else
      labels.push_back({best[t], frame, frame});
  }
  return labels;
}

std::vector<CtcHypothesis> ctc_beam_search(std::span<const float> log_probabilities,
                                           std::int64_t vocabulary, const CtcBeamSearch& options) {
  CHOIR_CHECK(
      vocabulary >= 1 && log_probabilities.size() % static_cast<std::size_t>(vocabulary) == 0,
      "{} log-probabilities in rows of {}", log_probabilities.size(), vocabulary);
  CHOIR_CHECK(options.beam >= 1 && options.best >= 1 && options.best <= options.beam,
              "{} hypotheses of a beam of {}", options.best, options.beam);
  BeamSearch search(vocabulary, options);
  const auto width = static_cast<std::size_t>(vocabulary);
  for (std::size_t t = 0; t < log_probabilities.size() / width; ++t)
    search.frame(static_cast<std::int64_t>(t), log_probabilities.subspan(t * width, width));
  return search.results();
}

std::vector<TimedWord> timed_words(std::span<const TimedLabel> labels,
                                   std::span<const std::string> pieces) {
  std::vector<TimedWord> words;
  bool open = false;  // the last word goes on
  for (const TimedLabel& label : labels) {
    CHOIR_CHECK(label.label >= 0 && static_cast<std::size_t>(label.label) < pieces.size(),
                "label {} of {} pieces", label.label, pieces.size());
    for (const char c : pieces[static_cast<std::size_t>(label.label)]) {
      if (c == ' ') {
        open = false;
        continue;
      }
      if (!open) words.push_back({"", label.first, label.last}), open = true;
      words.back().text += c, words.back().last = label.last;
    }
  }
  return words;
}

}  // namespace choir
