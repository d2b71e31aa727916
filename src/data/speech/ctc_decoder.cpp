#include "src/data/speech/ctc_decoder.hpp"

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

/// A node of the tree of prefixes: the labels of a prefix are those on the path to the root.
struct Node {
  std::int32_t parent, label;
  std::int64_t length;
};

/// The frames of the last label of a path; `before` is the entry of the label before it.
struct Heard {
  std::int32_t before = -1;
  std::int64_t first = 0, last = 0;
};

/// Paths that end in the same symbol (blank or the last label): the sum of their probabilities as a
/// logarithm, and the most likely path.
struct Ending {
  double all = kNever, best = kNever;
  Heard heard;
  std::int32_t kept = -1;  ///< index of `heard`, for prefixes in the beam
};

struct Prefix {
  std::int32_t parent, label;  ///< identify the prefix, which may have no node yet
  Ending blank, spoken;
  std::int32_t node = -1;
  double all() const { return log_add(blank.all, spoken.all); }
};

}  // namespace

class CtcBeam::Search {
 public:
  Search(std::int64_t vocabulary, const CtcBeamSearch& options)
      : vocabulary_(vocabulary),
        options_(options),
        most_remembered_(options.remembered),
        chosen_(static_cast<std::size_t>(vocabulary)) {
    next_.push_back({-1, -1, {.all = 0, .best = 0}, {}});
    keep(1);
  }

  void frame(std::span<const float> y) {
    const std::int64_t t = frames_++;
    const auto p = [&y](std::int32_t c) {
      return static_cast<double>(y[static_cast<std::size_t>(c)]);
    };
    next_.clear(), place_.clear();
    choose(y);
    const double blank = p(static_cast<std::int32_t>(vocabulary_) - 1);
    for (const Prefix& from : beam_) {
      Prefix& same = at(from.parent, from.label);
      add(same.blank, from.blank, blank), add(same.blank, from.spoken, blank);
      if (from.spoken.all > kNever) add(same.spoken, prolonged(from.spoken, t), p(from.label));
      for (const std::int32_t c : candidates_) extend(from, c, t, p(c));
    }
    // A prefix in the beam also gets the paths that lead to it through labels that were not chosen.
    for (const Prefix& to : beam_) {
      if (to.label < 0 || chosen_[static_cast<std::size_t>(to.label)]) continue;
      for (const Prefix& from : beam_)
        if (from.node == to.parent && p(to.label) >= options_.least)
          extend(from, to.label, t, p(to.label));
    }
    keep(options_.beam);
    if (remembered() > most_remembered_) {
      forget();
      most_remembered_ = std::max(options_.remembered, 2 * remembered());
    }
  }

  std::vector<CtcHypothesis> results() const {
    std::vector<CtcHypothesis> found;
    for (const Prefix& prefix : beam_)
      if (static_cast<std::int64_t>(found.size()) < options_.best)
        found.push_back(hypothesis(prefix));
    return found;
  }

 private:
  const Node& node(std::int32_t i) const { return nodes_[static_cast<std::size_t>(i)]; }
  static std::uint64_t key(std::int32_t parent, std::int32_t label) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(parent)) << 32) |
           static_cast<std::uint32_t>(label);
  }
  /// Chooses the symbols that may extend a prefix: at most `beam` extensions of a prefix stay, plus
  /// one, because an extension that repeats the last label may be less likely than its symbol.
  void choose(std::span<const float> y) {
    for (const std::int32_t c : candidates_) chosen_[static_cast<std::size_t>(c)] = false;
    candidates_.clear();
    for (std::int32_t c = 0; c + 1 < vocabulary_; ++c)
      if (static_cast<double>(y[static_cast<std::size_t>(c)]) >= options_.least)
        candidates_.push_back(c);
    const auto most = static_cast<std::size_t>(options_.beam) + 1;
    if (candidates_.size() > most) {
      std::partial_sort(candidates_.begin(),
                        candidates_.begin() + static_cast<std::ptrdiff_t>(most), candidates_.end(),
                        [&y](std::int32_t a, std::int32_t b) {
                          const float of_a = y[static_cast<std::size_t>(a)],
                                      of_b = y[static_cast<std::size_t>(b)];
                          return of_a != of_b ? of_a > of_b : a < b;
                        });
      candidates_.resize(most);
    }
    for (const std::int32_t c : candidates_) chosen_[static_cast<std::size_t>(c)] = true;
  }
  void extend(const Prefix& from, std::int32_t label, std::int64_t t, double p) {
    const bool repeats = label == from.label;
    if (repeats && from.blank.all == kNever) return;
    Prefix& longer = at(from.node, label);
    add(longer.spoken, begun(from.blank, t), p);
    if (!repeats) add(longer.spoken, begun(from.spoken, t), p);
  }
  /// The entry of a prefix in the next beam.
  Prefix& at(std::int32_t parent, std::int32_t label) {
    const auto [place, added] = place_.try_emplace(key(parent, label), next_.size());
    if (added) next_.push_back({parent, label, {}, {}});
    return next_[place->second];
  }
  static void add(Ending& to, const Ending& from, double p) {
    to.all = log_add(to.all, from.all + p);
    if (from.best + p > to.best) to.best = from.best + p, to.heard = from.heard;
  }
  static Ending begun(Ending from, std::int64_t t) {
    from.heard = {from.kept, t, t};
    return from;
  }
  static Ending prolonged(Ending from, std::int64_t t) {
    from.heard.last = t;
    return from;
  }
  std::vector<std::int32_t> labels(const Prefix& prefix) const {
    std::vector<std::int32_t> list;
    if (prefix.label >= 0) list.push_back(prefix.label);
    for (std::int32_t i = prefix.parent; i > 0; i = node(i).parent) list.push_back(node(i).label);
    std::reverse(list.begin(), list.end());
    return list;
  }
  std::int64_t length(const Prefix& prefix) const {
    return prefix.label < 0 ? 0 : node(prefix.parent).length + 1;
  }
  /// The most likely `count` prefixes of next_ become the beam, best first; only they get nodes.
  void keep(std::int64_t count) {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t i = 0; i < next_.size(); ++i) order.emplace_back(next_[i].all(), i);
    const auto before = [this](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first > b.first;
      const Prefix &x = next_[a.second], &y = next_[b.second];
      return length(x) != length(y) ? length(x) < length(y) : labels(x) < labels(y);
    };
    const std::size_t kept = std::min(order.size(), static_cast<std::size_t>(count));
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                      before);
    beam_.clear();
    for (std::size_t i = 0; i < kept; ++i) {
      Prefix prefix = next_[order[i].second];
      const auto [place, added] = nodes_of_.try_emplace(key(prefix.parent, prefix.label),
                                                        static_cast<std::int32_t>(nodes_.size()));
      if (added) nodes_.push_back({prefix.parent, prefix.label, length(prefix)});
      prefix.node = place->second;
      for (Ending* ending : {&prefix.blank, &prefix.spoken}) {
        if (ending->all == kNever || prefix.label < 0) continue;
        ending->kept = static_cast<std::int32_t>(heard_.size());
        heard_.push_back(ending->heard);
      }
      beam_.push_back(prefix);
    }
  }
  std::int64_t remembered() const { return std::ssize(nodes_) + std::ssize(heard_); }
  /// Compacts a list in its order. Everything that a kept entry descends from is kept too and lies
  /// before it. Returns the new index of each entry.
  template <class T, class Before>
  static std::vector<std::int32_t> compact(std::vector<T>& list, std::vector<bool> kept,
                                           const Before& before) {
    std::vector<std::int32_t> places(list.size(), -1);
    for (std::size_t i = list.size(); i-- > 0;)
      if (kept[i] && list[i].*before >= 0) kept[static_cast<std::size_t>(list[i].*before)] = true;
    std::size_t count = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!kept[i]) continue;
      places[i] = static_cast<std::int32_t>(count);
      list[count] = list[i];
      std::int32_t& from = list[count++].*before;
      if (from >= 0) from = places[static_cast<std::size_t>(from)];
    }
    list.resize(count);
    return places;
  }
  void forget() {
    std::vector<bool> nodes(nodes_.size()), heard(heard_.size());
    nodes[0] = true;
    for (const Prefix& prefix : beam_) {
      nodes[static_cast<std::size_t>(prefix.node)] = true;
      for (const Ending* ending : {&prefix.blank, &prefix.spoken})
        for (const std::int32_t i : {ending->kept, ending->heard.before})
          if (i >= 0) heard[static_cast<std::size_t>(i)] = true;
    }
    const auto node_at = compact(nodes_, std::move(nodes), &Node::parent);
    const auto heard_at = compact(heard_, std::move(heard), &Heard::before);
    const auto move = [](std::int32_t& i, const std::vector<std::int32_t>& places) {
      if (i >= 0) i = places[static_cast<std::size_t>(i)];
    };
    for (Prefix& prefix : beam_) {
      move(prefix.parent, node_at), move(prefix.node, node_at);
      for (Ending* ending : {&prefix.blank, &prefix.spoken})
        move(ending->kept, heard_at), move(ending->heard.before, heard_at);
    }
    nodes_of_.clear();
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      nodes_of_.emplace(key(nodes_[i].parent, nodes_[i].label), static_cast<std::int32_t>(i));
  }
  CtcHypothesis hypothesis(const Prefix& prefix) const {
    CtcHypothesis found;
    found.log_probability = prefix.all();
    std::int32_t heard =
        prefix.blank.best > prefix.spoken.best ? prefix.blank.kept : prefix.spoken.kept;
    for (std::int32_t i = prefix.node; i > 0; i = node(i).parent) {
      const Heard& when = heard_[static_cast<std::size_t>(heard)];
      found.labels.push_back({node(i).label, when.first, when.last});
      heard = when.before;
    }
    std::reverse(found.labels.begin(), found.labels.end());
    return found;
  }

  std::int64_t vocabulary_;
  CtcBeamSearch options_;
  std::int64_t frames_ = 0, most_remembered_;
  std::vector<Node> nodes_;   // nodes of prefixes that were in a beam; 0 is the empty prefix
  std::vector<Heard> heard_;  // entries of prefixes that were in a beam
  std::unordered_map<std::uint64_t, std::int32_t> nodes_of_;
  std::vector<Prefix> beam_, next_;
  std::unordered_map<std::uint64_t, std::size_t> place_;
  std::vector<std::int32_t> candidates_;
  std::vector<bool> chosen_;
};

CtcBeam::CtcBeam(std::int64_t vocabulary, const CtcBeamSearch& options) {
  CHOIR_CHECK(
      vocabulary >= 1 && options.beam >= 1 && options.best >= 1 && options.best <= options.beam,
      "{} hypotheses of a beam of {}, {} symbols", options.best, options.beam, vocabulary);
  search_ = std::make_unique<Search>(vocabulary, options);
}
CtcBeam::~CtcBeam() = default;
CtcBeam::CtcBeam(CtcBeam&&) noexcept = default;
CtcBeam& CtcBeam::operator=(CtcBeam&&) noexcept = default;

void CtcBeam::frame(std::span<const float> log_probabilities) {
  search_->frame(log_probabilities);
}

std::vector<CtcHypothesis> CtcBeam::results() const {
  return search_->results();
}

std::vector<std::int32_t> CtcHypothesis::ids() const {
  std::vector<std::int32_t> list;
  for (const TimedLabel& label : labels) list.push_back(label.label);
  return list;
}

void CtcCollapse::frame(std::int32_t best) {
  const std::int64_t t = frames_++;
  if (best != blank_ && best == before_)
    labels_.back().last = t;
  else if (best != blank_)
    labels_.push_back({best, t, t});
  before_ = best;
}

std::vector<TimedLabel> ctc_collapse(std::span<const std::int32_t> best, std::int32_t blank) {
  CtcCollapse collapse(blank);
  for (const std::int32_t symbol : best) collapse.frame(symbol);
  return collapse.labels();
}

std::vector<CtcHypothesis> ctc_beam_search(std::span<const float> log_probabilities,
                                           std::int64_t vocabulary, const CtcBeamSearch& options) {
  CHOIR_CHECK(
      vocabulary >= 1 && log_probabilities.size() % static_cast<std::size_t>(vocabulary) == 0,
      "{} log-probabilities in rows of {}", log_probabilities.size(), vocabulary);
  CtcBeam search(vocabulary, options);
  const auto width = static_cast<std::size_t>(vocabulary);
  for (std::size_t at = 0; at < log_probabilities.size(); at += width)
    search.frame(log_probabilities.subspan(at, width));
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
