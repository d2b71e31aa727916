// The sections of text: events, samples, evaluations, provenance, and decks (the given keys, all
// keys, and their differences).

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/report/report_page.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {
namespace {

constexpr std::array<int, kEventKinds> kEventColours{7, 3, 0, 1, 6, 4, 1, 2};

std::string step_text(std::int64_t step) {
  return step < 0 ? "" : fmt::format("{}", step);
}

/// Lanes over the steps: one lane for each kind of event that occurs, with a tick for each event.
std::string event_lanes(const ReportedRun& run) {
  constexpr double kLanesWidth = 480, kLanesLeft = 96, kLanesRight = 24, kLane = 22;
  struct Lane {
    std::string name;
    int colour = 0;
    std::set<std::int64_t> at;
  };
  std::map<int, Lane> lanes;  // in the order in which they occur in a run
  const double last = std::max(run.last_step(), 1.0);
  const auto place = [&](double step) {
    return clamped_integer(std::round(
        2 * (kLanesLeft + std::min(1.0, step / last) * (kLanesWidth - kLanesLeft - kLanesRight))));
  };
  for (const RunEvent& event : run.events) {
    if (event.step < 0) continue;
    Lane& lane = lanes[2 * static_cast<int>(event.kind)];
    lane.name = name_of(event.kind);
    lane.colour = kEventColours[static_cast<std::size_t>(event.kind)];
    lane.at.insert(place(static_cast<double>(event.step)));
  }
  for (const double step : run.curve("val_loss").x) {
    Lane& lane = lanes[2 * static_cast<int>(EventKind::restart) + 1];
    lane.name = "evaluation";
    lane.colour = 5;
    lane.at.insert(place(step));
  }
  if (lanes.empty()) return {};
  const double height = static_cast<double>(lanes.size()) * kLane + 26;
  std::string out =
      fmt::format("<svg class=chart viewBox=\"0 0 {} {:.0f}\" role=img aria-label=events>",
                  kLanesWidth, height);
  double y = kLane / 2 + 2;
  for (const auto& [order, lane] : lanes) {
    out += fmt::format("<text x={} y={:.0f} class=e>{}</text><path class=g d=\"M{} {:.0f}H{}\"/>",
                       kLanesLeft - 10, y + 4, lane.name, kLanesLeft, y, kLanesWidth - kLanesRight);
    std::string ticks;
    for (const std::int64_t x : lane.at)
      ticks += fmt::format("M{} {:.0f}v12", static_cast<double>(x) / 2, y - 6);
    out += fmt::format("<path class=\"s{}\" stroke-width=2.5 d=\"{}\"/>", lane.colour, ticks);
    y += kLane;
  }
  for (const double tick : round_ticks(0, last, 4)) {
    if (tick != std::floor(tick)) continue;  // steps are integers
    out += fmt::format("<text x={:.1f} y={:.0f} class=m>{}</text>",
                       static_cast<double>(place(tick)) / 2, height - 6, tick_text(tick, 1));
  }
  return out + "</svg>";
}

std::string event_rows(const ReportedRun& run) {
  constexpr std::size_t kShown = 60;
  std::string rows;
  // A long list shows its first and last saves; other events are always shown.
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < run.events.size(); ++i) {
    const RunEvent& event = run.events[i];
    const bool quiet = event.kind == EventKind::save;
    if (quiet && run.events.size() > kShown && i > kShown / 2 &&
        i + kShown / 2 < run.events.size()) {
      ++left_out;
      continue;
    }
    rows += fmt::format(
        "<tr><td class=w>{}</td><td class=n>{}</td><td class=w><i class=\"chip f{}\"></i>{}</td>"
        "<td>{}</td></tr>",
        escape_html(event.time), step_text(event.step),
        kEventColours[static_cast<std::size_t>(event.kind)], name_of(event.kind),
        escape_html(event.text.substr(0, 300)));
    if (rows.size() > 200000) {
      left_out += run.events.size() - i - 1;
      break;
    }
  }
  std::string out =
      "<div class=wide><table><tr><th>time</th><th class=n>step</th><th>event</th>"
      "<th>log</th></tr>" +
      rows + "</table></div>";
  if (left_out > 0) out += fmt::format("<p class=note>{} more are not shown.</p>", left_out);
  return out;
}

std::string name_if_several(const std::vector<ReportedRun>& runs, const ReportedRun& run) {
  return runs.size() > 1 ? "<h3>" + escape_html(run.name) + "</h3>" : "";
}

}  // namespace

std::string events_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  for (const ReportedRun& run : runs) {
    if (run.events.empty() && run.curve("val_loss").x.empty()) continue;
    body += "<div class=card>" + name_if_several(runs, run) + event_lanes(run) +
            fmt::format("<details><summary>{} events</summary>", run.events.size()) +
            event_rows(run) + "</details>";
    if (!run.summary.empty()) {
      body += "<details><summary>summary of the log</summary><pre>";
      for (const std::string& line : run.summary) body += escape_html(line) + "\n";
      body += "</pre></details>";
    }
    body += "</div>";
  }
  return body.empty() ? "" : section("Events", "<div class=grid>" + body + "</div>");
}

std::string samples_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  for (const ReportedRun& run : runs) {
    if (run.samples.empty()) continue;
    if (runs.size() > 1)
      body += "<h3 style=\"margin:14px 0 8px\">" + escape_html(run.name) + "</h3>";
    body += "<div class=\"grid gallery\">";
    // With several runs only the last sample of each is shown.
    for (std::size_t i = runs.size() > 1 ? run.samples.size() - 1 : 0; i < run.samples.size(); ++i)
      body += fmt::format("<div class=card><h3>after step {}</h3><pre>{}</pre></div>",
                          format_count(run.samples[i].step), escape_html(run.samples[i].text));
    body += "</div>";
    const std::size_t shown = runs.size() > 1 ? 1 : run.samples.size();
    if (run.sample_count > shown)
      body += fmt::format("<p class=note>{} of {} are shown; all are in {}/samples.</p>", shown,
                          run.sample_count, escape_html(run.path));
  }
  return body.empty() ? "" : section("Samples and transcripts", body);
}

namespace {

/// A metric with its unit: error rates and shares of exact answers are percentages.
std::string score_text(const std::string& name, double value) {
  const std::size_t tag = name.find('/');
  const std::string kind = name.substr(0, tag);
  const std::string of = tag == std::string::npos ? "" : name.substr(tag);
  if (!std::isfinite(value)) return name + " -";
  if (kind == "wer" || kind == "cer")
    return fmt::format("{}{} {:.2f} %", kind == "wer" ? "WER" : "CER", of, 100 * value);
  if (kind == "exact_match") return fmt::format("exact match{} {:.2f} %", of, 100 * value);
  return fmt::format("{} {:.4f}{}", name, value, kind == "loss" ? " nats" : "");
}

/// The value of an override KEY=VALUE in `source`, where overrides are joined by blanks, which
/// lists and objects may also contain; "" if there is none.
std::string override_value(const std::string& source, const std::string& key) {
  const std::size_t found = (" " + source).find(" " + key + "=");
  if (found == std::string::npos) return {};
  const std::size_t begin = found + key.size() + 1;
  const bool list = source.compare(begin, 1, "[") == 0, object = source.compare(begin, 1, "{") == 0;
  if (!list && !object) return source.substr(begin, source.find(' ', begin) - begin);
  const char last = list ? ']' : '}';
  for (std::size_t end = source.find(last, begin); end != std::string::npos;
       end = source.find(last, end + 1)) {
    std::string value = source.substr(begin, end + 1 - begin);
    if (document_of(value).is_structured()) return value;
  }
  return source.substr(begin);
}

/// The data that the value of data.val or data.validation names; a set as NAME:DATA.
std::vector<std::string> data_named_by(std::string value) {
  std::vector<std::string> names;
  const nlohmann::json json = document_of(value);
  if (json.is_object()) {
    for (const auto& [name, data] : json.items())
      names.push_back(data.is_string() ? name + ":" + data.get<std::string>() : name);
    return names;
  }
  if (json.is_array()) {
    for (const auto& data : json)
      if (data.is_string()) names.push_back(data.get<std::string>());
    return names;
  }
  std::erase_if(
      value, [](char c) { return std::string_view("[]{}\"").find(c) != std::string_view::npos; });
  if (!value.empty()) names.push_back(value);
  return names;
}

/// The validation set, the task, or the data that the command named instead of those of the run.
std::string data_of(const EvaluationRecord& record) {
  if (!record.set.empty()) return record.set;
  std::vector<std::string> all = data_named_by(override_value(record.source, "data.val"));
  for (std::string& set : data_named_by(override_value(record.source, "data.validation")))
    all.push_back(std::move(set));
  if (!all.empty()) return "all of " + join(all, ", ");
  return "all validation data";
}

/// Metrics and counts of recognisers, which have columns of their own.
constexpr std::array<std::string_view, 3> kRecogniserScores{"wer", "cer", "loss"};
constexpr std::array<std::string_view, 4> kWordCounts{"words", "insertions", "deletions",
                                                      "substitutions"};
constexpr std::array<std::string_view, 4> kCharacterCounts{
    "characters", "character_insertions", "character_deletions", "character_substitutions"};

bool is_of_recogniser(const EvaluationRecord& record) {
  return std::ranges::any_of(record.metrics, [](const auto& of) { return of.first == "wer"; });
}

bool is_column(const EvaluationRecord& record, std::string_view name) {
  if (!is_of_recogniser(record)) return false;
  const auto among = [&](const auto& names) {
    return std::ranges::find(names, name) != names.end();
  };
  return among(kRecogniserScores) || among(kWordCounts) || among(kCharacterCounts);
}

/// "acc 0.6250 +- 0.1830, ...": the standard error of a metric is another metric in the file.
std::string scores_text(const EvaluationRecord& record) {
  constexpr std::string_view kError = "_stderr";
  std::string text;
  for (const auto& [name, value] : record.metrics) {
    if (name.ends_with(kError) || is_column(record, name)) continue;
    text += (text.empty() ? "" : ", ") + score_text(name, value);
    for (const auto& [other, error] : record.metrics)
      if (other == name + std::string(kError)) text += fmt::format(" ± {:.4f}", error);
  }
  return text;
}

std::string conditions_text(const EvaluationRecord& record) {
  std::string text = record.kind + ", " + record.precision;
  for (const auto& [name, value] : record.conditions)
    if (!is_column(record, name)) text += fmt::format(", {} {}", name, value);
  if (!record.source.empty()) text += ", " + record.source;
  if (!record.time.empty()) text += ", " + record.time;
  if (record.repeats > 0)
    text += fmt::format(", and {} with the same result", counted(record.repeats, "earlier time"));
  return text;
}

std::string number_cell(const std::string& text) {
  return "<td class=n>" + (text.empty() ? "-" : text) + "</td>";
}

/// The cells of words, their errors, WER, CER and loss; a dash for what is not known.
std::string recogniser_cells(const EvaluationRecord& record) {
  std::string cells;
  for (const std::string_view name : kWordCounts) {
    const auto found =
        std::ranges::find_if(record.conditions, [&](const auto& of) { return of.first == name; });
    cells += number_cell(found == record.conditions.end() ? "" : format_count(found->second));
  }
  for (const std::string_view name : kRecogniserScores) {
    const auto found =
        std::ranges::find_if(record.metrics, [&](const auto& of) { return of.first == name; });
    const bool known = found != record.metrics.end() && std::isfinite(found->second);
    cells += number_cell(!known           ? ""
                         : name == "loss" ? fmt::format("{:.4f}", found->second)
                                          : fmt::format("{:.2f} %", 100 * found->second));
  }
  return cells;
}

/// A table of the evaluations of recognisers, or of all others; "" if there are none.
std::string evaluations_table(const std::vector<ReportedRun>& runs, bool of_recognisers) {
  std::string rows;
  for (const ReportedRun& run : runs)
    for (const EvaluationRecord& record : run.evaluations) {
      if (is_of_recogniser(record) != of_recognisers) continue;
      rows += fmt::format("<tr>{}<td>{}</td><td class=n>{}</td>{}<td>{}</td><td>{}</td></tr>",
                          runs.size() > 1 ? "<td>" + escape_html(run.name) + "</td>" : "",
                          escape_html(data_of(record)), record.step,
                          of_recognisers ? recogniser_cells(record) : "",
                          escape_html(scores_text(record)), escape_html(conditions_text(record)));
    }
  if (rows.empty()) return "";
  return fmt::format(
      "<div class=\"card wide\"><table><tr>{}<th>set</th><th class=n>step</th>{}<th>{}</th>"
      "<th>conditions</th></tr>{}</table></div>",
      runs.size() > 1 ? "<th>run</th>" : "",
      of_recognisers ? "<th class=n>words</th><th class=n>ins</th><th class=n>del</th><th "
                       "class=n>sub</th><th class=n>WER</th><th class=n>CER</th><th "
                       "class=n>loss (nats)</th>"
                     : "",
      of_recognisers ? "other scores" : "scores", rows);
}

}  // namespace

std::string evaluations_section(const std::vector<ReportedRun>& runs) {
  const std::string tables = evaluations_table(runs, true) + evaluations_table(runs, false);
  return tables.empty() ? "" : section("Evaluations", tables);
}

std::string worst_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  for (const ReportedRun& run : runs)
    for (const WorstSamples& worst : run.worst) {
      std::string rows;
      for (const WorstSample& sample : worst.samples)
        rows += fmt::format(
            "<tr><td>{}</td><td>{}</td><td class=n>{} of {}</td><td>{}</td><td>{}</td></tr>",
            escape_html(sample.place), escape_html(sample.set), sample.errors, sample.units,
            escape_html(sample.reference), escape_html(sample.answer));
      body += fmt::format(
          "<div class=\"card wide\">{}<table><tr><th>recording</th><th>set</th><th "
          "class=n>errors</th><th>reference</th><th>hypothesis</th></tr>{}</table><p "
          "class=note>The samples with the most wrong words in the last evaluation {}, after step "
          "{}.</p></div>",
          name_if_several(runs, run), rows,
          worst.source.empty() ? "of the data of the run" : "with " + escape_html(worst.source),
          worst.step);
    }
  return body.empty() ? "" : section("Most errors", body);
}

std::string provenance_section(const std::vector<ReportedRun>& runs) {
  std::string rows;
  for (const ReportedRun& run : runs) {
    std::set<std::string> hosts;
    for (const RankPlace& rank : run.start.ranks) hosts.insert(rank.host);
    std::string text;
    for (const std::string& host : hosts) text += (text.empty() ? "" : ", ") + host;
    rows += "<tr><td><b>" + escape_html(run.name) + "</b></td><td>" + escape_html(run.path) +
            "</td></tr>";
    const auto row = [&](const std::string& key, const std::string& value) {
      if (!value.empty())
        rows += "<tr><td>" + escape_html(key) + "</td><td>" + escape_html(value) + "</td></tr>";
    };
    row("device", run.start.device);
    row("hosts", text);
    for (const auto& [key, value] : run.start.provenance)
      if (key != "host") row(key == "date" ? "last start" : key, value);
  }
  return rows.empty()
             ? ""
             : section("Provenance", "<div class=\"card wide\"><table>" + rows + "</table></div>");
}

namespace {

std::int64_t keys_shown(const ReportedRun& run) {
  return std::ranges::count_if(run.deck, [](const auto& of) { return of.second.concerns; });
}

/// Rows of the given keys, then, unless only these are `chosen`, of the derived ones and of those
/// at their defaults.
std::string deck_rows(const ReportedRun& run, bool chosen) {
  std::array<std::string, 3> groups;
  for (const auto& [key, entry] : run.deck) {
    if (!entry.concerns) continue;
    const std::size_t group = entry.given() ? 0 : entry.source == "derived" ? 1 : 2;
    groups[group] += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", escape_html(key),
                                 escape_html(entry.value), escape_html(entry.source));
  }
  const std::string rows = chosen ? groups[0] : groups[0] + groups[1] + groups[2];
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

/// The files of a key as this machine sees them: a link and the file that it names are the same.
std::string files_of(const ReportedRun& run, const std::string& key) {
  const auto found = run.deck.find(key);
  if (found == run.deck.end()) return {};
  const auto value = nlohmann::json::parse(found->second.value, nullptr, false);
  if (!value.is_array()) return found->second.value;
  std::string files;
  for (const nlohmann::json& path : value) {
    std::error_code failed;
    const std::string given = path.is_string() ? path.get<std::string>() : path.dump();
    const auto real = std::filesystem::weakly_canonical(given, failed);
    files += (failed ? given : real.string()) + "\n";
  }
  return files;
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
  std::vector<std::string> keys = differing_keys(runs);
  const auto differing = [&](std::initializer_list<const char*> of) {
    std::string names;
    for (const char* name : of)
      if (std::find(keys.begin(), keys.end(), name) != keys.end())
        names += (names.empty() ? "" : ", ") + std::string(name);
    return names;
  };
  const auto other_files = [&](const char* key) {
    return std::ranges::any_of(runs, [&](const ReportedRun& run) {
      return files_of(run, key) != files_of(runs.front(), key);
    });
  };
  for (const char* key : {"data.train", "data.val", "data.validation"})
    if (!runs.empty() && !other_files(key)) std::erase(keys, key);
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
        "<details><summary>{}: all {} keys that it reads and the sources of their "
        "values</summary><div "
        "class=card>{}</div></details>",
        escape_html(run.name), keys_shown(run), deck_rows(run, false));
  }
  return body.empty() ? "" : section("Deck", body);
}

}  // namespace choir::report
