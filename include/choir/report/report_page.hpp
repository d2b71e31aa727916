#pragma once
// The page of `choir report`: one HTML file that needs nothing else. Pure.
#include <string>
#include <vector>

#include "choir/report/dialogue.hpp"
#include "choir/report/run_record.hpp"
#include "choir/report/scaling_table.hpp"

namespace choir::report {

/// Runs, benchmark tables and dialogues; any may be missing.
std::string report_page(const std::vector<ReportedRun>& runs,
                        const std::vector<ScalingTable>& tables,
                        const std::vector<RecordedDialogue>& dialogues = {});

// Its parts.
std::string page_style();
/// Curves of all runs over each other.
std::string curves_section(const std::vector<ReportedRun>& runs);
/// Where the time of a step goes.
std::string phases_section(const std::vector<ReportedRun>& runs);
std::string memory_section(const std::vector<ReportedRun>& runs);
/// The mesh of ranks as cells, a colour for each node.
std::string layout_section(const std::vector<ReportedRun>& runs);
std::string events_section(const std::vector<ReportedRun>& runs);
std::string samples_section(const std::vector<ReportedRun>& runs);
/// Keys in which the decks differ, and each deck with the sources of its values.
std::string deck_section(const std::vector<ReportedRun>& runs);
std::string provenance_section(const std::vector<ReportedRun>& runs);
std::string scaling_section(const ScalingTable& table);

/// Keys whose values are not the same in all runs. run.dir and run.name always differ: left out.
std::vector<std::string> differing_keys(const std::vector<ReportedRun>& runs);

/// What keeps numbers of these runs from being compared: sentences, none where nothing does.
std::vector<std::string> comparison_cautions(const std::vector<ReportedRun>& runs);

/// The colour of a run in all charts.
inline constexpr int kColours = 8;
/// "<section><h2 id=title>title</h2>body</section>".
std::string section(const std::string& title, const std::string& body);

}  // namespace choir::report
