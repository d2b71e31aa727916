// Decks: the given keys, all keys, and the differences between decks.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "choir/report/report_page.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {
namespace {

/// `chosen`: without defaults and derived values.
std::string deck_rows(const ReportedRun& run, bool chosen) {
  std::string rows;
  for (const auto& [key, entry] : run.deck) {
    if (chosen && (entry.source == "default" || entry.source == "derived")) continue;
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", escape_html(key),
                        escape_html(entry.value), escape_html(entry.source));
  }
  return "<div class=\"deck wide\"><table><tr><th>key</th><th>value</th><th>from</th></tr>" + rows +
         "</table></div>";
}

std::string differences(const std::vector<ReportedRun>& runs) {
  const std::vector<std::string> keys = differing_keys(runs);
  if (keys.empty())
    return "<p class=note>The decks have the same values in all keys except run.dir and "
           "run.name.</p>";
  std::string out =
      "<div class=\"card deck wide\"><h3>Keys that differ</h3><table><tr><th>key</th>";
  for (std::size_t r = 0; r < runs.size(); ++r)
    out += fmt::format("<th><i class=\"chip f{}\"></i>{}</th>", r % kColours,
                       escape_html(runs[r].name));
  out += "</tr>";
  for (const std::string& key : keys) {
    out += "<tr><td>" + escape_html(key) + "</td>";
    for (const ReportedRun& run : runs) {
      const auto found = run.deck.find(key);
      out += "<td>" + (found == run.deck.end() ? "absent" : escape_html(found->second.value)) +
             "</td>";
    }
    out += "</tr>";
  }
  return out + "</table></div>";
}

const std::string& value_of(const ReportedRun& run, const std::string& key) {
  static const std::string kNone;
  const auto found = run.deck.find(key);
  return found == run.deck.end() ? kNone : found->second.value;
}

}  // namespace

std::vector<std::string> differing_keys(const std::vector<ReportedRun>& runs) {
  std::vector<const ReportedRun*> known;  // a lost deck differs in no key
  std::set<std::string> keys;
  for (const ReportedRun& run : runs) {
    if (!run.deck.empty()) known.push_back(&run);
    for (const auto& [key, entry] : run.deck) keys.insert(key);
  }
  std::vector<std::string> differing;
  for (const std::string& key : keys)
    if (key != "run.dir" && key != "run.name" &&
        std::any_of(known.begin(), known.end(), [&](const ReportedRun* run) {
          return value_of(*run, key) != value_of(*known.front(), key);
        }))
      differing.push_back(key);
  return differing;
}

std::vector<std::string> comparison_cautions(const std::vector<ReportedRun>& runs) {
  const std::vector<std::string> keys = differing_keys(runs);
  const auto differing = [&](std::initializer_list<const char*> of) {
    std::string names;
    for (const char* name : of)
      if (std::find(keys.begin(), keys.end(), name) != keys.end())
        names += (names.empty() ? "" : ", ") + std::string(name);
    return names;
  };
  std::vector<std::string> cautions;
  if (const std::string names = differing({"model.type"}); !names.empty())
    cautions.push_back(
        "The runs train different kinds of models (model.type): their losses, rates and error "
        "rates are not comparable.");
  if (const std::string names =
          differing({"data.train", "data.val", "data.validation", "data.val_fraction"});
      !names.empty())
    cautions.push_back(
        fmt::format("The runs use different data ({}): compare the trends of their losses and "
                    "error rates, not the values.",
                    names));
  if (const std::string names = differing({"data.tokenizer", "data.labels"}); !names.empty())
    cautions.push_back(fmt::format(
        "The runs have different units of text ({}): losses per token are not comparable.", names));
  return cautions;
}

std::string deck_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  if (runs.size() > 1) body += differences(runs);
  for (const ReportedRun& run : runs) {
    if (run.deck.empty()) continue;
    if (runs.size() == 1)
      body += "<div class=card><h3>Given values</h3>" + deck_rows(run, true) + "</div>";
    body += fmt::format(
        "<details><summary>{}: all {} keys and the sources of their values</summary><div "
        "class=card>{}</div></details>",
        escape_html(run.name), run.deck.size(), deck_rows(run, false));
  }
  return body.empty() ? "" : section("Deck", body);
}

}  // namespace choir::report
