// Events, samples, decks and provenance.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "choir/train/report/report_page.hpp"
#include "choir/train/report/svg_chart.hpp"

namespace choir::report {
namespace {

constexpr std::array<int, kEventKinds> kEventColours{7, 3, 0, 1, 4, 2, 6};

std::string step_text(std::int64_t step) {
  return step < 0 ? "" : fmt::format("{}", step);
}

/// Lanes over the steps: a tick for each event, one for each kind that occurs.
std::string event_lanes(const ReportedRun& run) {
  constexpr double kWidth = 480, kLeft = 96, kRight = 14, kLane = 22;
  std::map<std::string, std::pair<int, std::set<long>>> lanes;  // name: colour, x
  const double last = std::max(run.last_step(), 1.0);
  const auto place = [&](double step) {
    return std::lround(2 * (kLeft + std::min(1.0, step / last) * (kWidth - kLeft - kRight)));
  };
  for (const RunEvent& event : run.events) {
    if (event.step < 0) continue;
    auto& lane = lanes[name_of(event.kind)];
    lane.first = kEventColours[static_cast<std::size_t>(event.kind)];
    lane.second.insert(place(static_cast<double>(event.step)));
  }
  for (const double step : run.curve("val_loss").x) {
    lanes["evaluation"].first = 5;
    lanes["evaluation"].second.insert(place(step));
  }
  if (lanes.empty()) return {};
  const double height = static_cast<double>(lanes.size()) * kLane + 26;
  std::string out = fmt::format(
      "<svg class=chart viewBox=\"0 0 {} {:.0f}\" role=img aria-label=events>", kWidth, height);
  double y = kLane / 2 + 2;
  for (const auto& [name, lane] : lanes) {
    out += fmt::format("<text x={} y={:.0f} class=e>{}</text><path class=g d=\"M{} {:.0f}H{}\"/>",
                       kLeft - 10, y + 4, name, kLeft, y, kWidth - kRight);
    std::string ticks;
    for (const long x : lane.second) ticks += fmt::format("M{} {:.0f}v12", x / 2.0, y - 6);
    out += fmt::format("<path class=\"s{}\" stroke-width=2.5 d=\"{}\"/>", lane.first, ticks);
    y += kLane;
  }
  for (const double tick : round_ticks(0, last, 4))
    out += fmt::format("<text x={:.1f} y={:.0f} class=m>{}</text>",
                       static_cast<double>(place(tick)) / 2, height - 6, tick_text(tick, last / 4));
  return out + "</svg>";
}

std::string event_rows(const ReportedRun& run) {
  constexpr std::size_t kShown = 60;
  std::string rows;
  // The first and the last of a long list; what went wrong is there in any case.
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
  if (left_out > 0) out += fmt::format("<p class=note>{} more are left out.</p>", left_out);
  return out;
}

std::string deck_rows(const ReportedRun& run) {
  std::string rows;
  for (const auto& [key, entry] : run.deck)
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", escape_html(key),
                        escape_html(entry.value), escape_html(entry.source));
  return "<div class=\"deck wide\"><table><tr><th>key</th><th>value</th><th>from</th></tr>" + rows +
         "</table></div>";
}

std::string differences(const std::vector<ReportedRun>& runs) {
  const std::vector<std::string> keys = differing_keys(runs);
  if (keys.empty())
    return "<p class=note>The decks have the same value in every key but run.dir and "
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
      out += "<td>" + (found == run.deck.end() ? "not there" : escape_html(found->second.value)) +
             "</td>";
    }
    out += "</tr>";
  }
  return out + "</table></div>";
}

}  // namespace

std::vector<std::string> differing_keys(const std::vector<ReportedRun>& runs) {
  std::set<std::string> keys;
  for (const ReportedRun& run : runs)
    for (const auto& [key, entry] : run.deck) keys.insert(key);
  const auto value = [](const ReportedRun& run, const std::string& key) {
    const auto found = run.deck.find(key);
    return found == run.deck.end() ? std::string() : found->second.value;
  };
  std::vector<std::string> differing;
  for (const std::string& key : keys)
    if (key != "run.dir" && key != "run.name" &&
        std::any_of(runs.begin(), runs.end(), [&](const ReportedRun& run) {
          return value(run, key) != value(runs.front(), key);
        }))
      differing.push_back(key);
  return differing;
}

std::string events_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  for (const ReportedRun& run : runs) {
    if (run.events.empty() && run.curve("val_loss").x.empty()) continue;
    body += "<div class=card><h3>" + escape_html(run.name) + "</h3>" + event_lanes(run) +
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
    body += fmt::format("<div class=card><h3>{}</h3>", escape_html(run.name));
    for (std::size_t i = run.samples.size(); i-- > 0;) {
      const SampleText& sample = run.samples[i];
      body += fmt::format("<details{}><summary>after step {}</summary><pre>{}</pre></details>",
                          i + 1 == run.samples.size() ? " open" : "", sample.step,
                          escape_html(sample.text));
    }
    if (run.sample_count > run.samples.size())
      body += fmt::format("<p class=note>{} of {} in {}/samples.</p>", run.samples.size(),
                          run.sample_count, escape_html(run.path));
    body += "</div>";
  }
  return body.empty() ? ""
                      : section("Samples and transcripts", "<div class=grid>" + body + "</div>");
}

std::string deck_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  if (runs.size() > 1) body += differences(runs);
  for (const ReportedRun& run : runs)
    if (!run.deck.empty())
      body += fmt::format(
          "<details><summary>{}: all {} keys, and where each value is from"
          "</summary>{}</details>",
          escape_html(run.name), run.deck.size(), deck_rows(run));
  return body.empty() ? "" : section("Deck", body);
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

}  // namespace choir::report
