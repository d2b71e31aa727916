#pragma once
// Text that is printed on a terminal or in a log. Names that come from files may contain control
// sequences, which set the title of a terminal, move its cursor or reverse the order of letters.
// All output passes through printable(), so that a terminal shows such a name and does not obey it,
// and sentences and tables through fitted(), so that no line is wider than the terminal.
// The standard streams of a process outlive their readers.

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace choir {

/// The text with an escape for every character that a terminal obeys: control characters except
/// line ends and tabs, DEL, C1 controls, bidirectional embeddings, overrides and isolates, and line
/// and paragraph separators become "\u001b" as in JSON, so that a JSON text keeps its meaning;
/// bytes that are not UTF-8 become "\x9b". Other text, backslashes included, is unchanged.
std::string printable(std::string_view text);
/// The same for a name inside a line: line ends and tabs become "\n", "\r" and "\t", too.
std::string printable_name(std::string_view name);
/// The same for a one-line message: text after a line end is indented, so that no part of a name
/// looks like the beginning of another message.
std::string printable_message(std::string_view text);

/// Writes the printable form to a standard stream. Throws like fmt::print() for standard output;
/// failures of standard error are ignored because they cannot be reported.
void write_printable(std::FILE* to, std::string_view text);

/// The columns of the terminal that shows `to`, which is stdout or stderr: COLUMNS of the
/// environment, or the width that the terminal reports; 0 without a terminal or if it is unknown.
std::size_t terminal_columns(std::FILE* to);
/// The text without lines of more than `columns` columns: paragraphs are broken anew, tables lose
/// columns that do not fit, and commands end their lines with a backslash. JSON and words that are
/// too long stay as they are. `columns` = 0 means no limit. Pure.
std::string fitted(std::string_view text, std::size_t columns);
/// The same for the terminal that shows `to`, which counts as 60 columns wide if it is narrower.
std::string fitted_for(std::FILE* to, std::string_view text);

/// Writes text for people: printable, and fitted for a terminal.
void write_fitted(std::FILE* to, std::string_view text);
template <class... T>
void print_safely(fmt::format_string<T...> form, T&&... args) {
  write_fitted(stdout, fmt::format(form, std::forward<T>(args)...));
}
template <class... T>
void print_safely(std::FILE* to, fmt::format_string<T...> form, T&&... args) {
  write_fitted(to, fmt::format(form, std::forward<T>(args)...));
}

/// Writes generated text to standard output and flushes it. A file or a pipe receives the bytes, a
/// terminal the printable form. `text` holds whole characters.
void print_generated(std::string_view text);

/// From now on, text that is printed to `stdout` and `stderr` after their reader has gone (a `head`
/// that ended, a closed terminal) is discarded, and the command continues. Other write errors
/// remain errors. Called once per process, before anything is printed.
void outlive_readers();

/// True for the first caller after text was discarded; that caller reports it.
bool report_lost_reader();

}  // namespace choir
