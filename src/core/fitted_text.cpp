// Text fitted into the columns of a terminal. Texts are made without knowing who reads them:
// paragraphs are broken at 100 columns, and tables are as wide as their cells. Here a paragraph is
// broken anew, and a command remains one that can be copied. A table that is too wide becomes
// narrower by the first of these rules that is enough:
//   1. It loses blanks between its columns.
//   2. If its last column begins in the left half, the text of that column is broken inside it.
//   3. If it has a row of names, it loses columns from the right, because tables have their
//      important columns first, and a line below it names them. A last column without a name is
//      the verdict on a row and stays.
//   4. Each row continues on a second line, all from the same column.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/output.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::size_t kUsualWidth = 100;  // of paragraphs that are broken where they are made
constexpr std::size_t kDeeper = 4;        // columns by which a continued row is indented

/// A line of UTF-8 by columns. Every character counts as one column.
class TextLine {
 public:
  explicit TextLine(std::string_view text) : text_(text) {
    for (std::size_t i = 0; i < text.size(); ++i)
      if ((static_cast<unsigned char>(text[i]) & 0xC0u) != 0x80) at_.push_back(i);
    while (indent_ < width() && blank(indent_)) ++indent_;
  }
  std::size_t width() const { return at_.size(); }
  std::size_t indent() const { return indent_; }
  /// True also behind the end of the line.
  bool blank(std::size_t column) const { return column >= width() || text_[at_[column]] == ' '; }
  /// " " behind the end of the line.
  std::string_view character(std::size_t column) const {
    if (column >= width()) return " ";
    const std::size_t end = column + 1 < width() ? at_[column + 1] : text_.size();
    return text_.substr(at_[column], end - at_[column]);
  }
  std::string_view from(std::size_t column) const {
    return column < width() ? text_.substr(at_[column]) : std::string_view{};
  }
  std::string_view until(std::size_t column) const {
    const std::string_view head = column < width() ? text_.substr(0, at_[column]) : text_;
    return head.substr(0, head.find_last_not_of(' ') + 1);
  }
  /// The columns at which a word begins behind two blanks or more.
  std::vector<std::size_t> cells() const {
    std::vector<std::size_t> begins;
    for (std::size_t c = indent_ + 2; c < width(); ++c)
      if (!blank(c) && blank(c - 1) && blank(c - 2)) begins.push_back(c);
    return begins;
  }

 private:
  std::string_view text_;
  std::vector<std::size_t> at_;  // where each character begins
  std::size_t indent_ = 0;
};

bool is_row(const TextLine& line) {
  return line.cells().size() >= 2;
}

/// The column at which the text of a line begins behind its label, time stamp or arrow.
std::size_t hanging_indent(const TextLine& line, std::size_t columns) {
  const std::string_view text = line.from(line.indent());
  if (text.starts_with("-> ")) return line.indent() + 3;
  if (text.size() > 1 && text[0] == '[' && std::isdigit(static_cast<unsigned char>(text[1])) != 0)
    return kDeeper;
  std::size_t hang = std::max<std::size_t>(line.indent(), 2);
  for (const std::size_t cell : line.cells())
    if (cell <= columns / 2) hang = cell;
  return hang;
}

bool is_command(std::string_view text) {
  constexpr std::array kLaunchers = {"jobs/launch ", "sbatch ", "qsub ", "mpiexec ", "$ "};
  const std::string_view program = text.substr(0, text.find(' '));
  return program.ends_with("/choir") ||
         std::ranges::any_of(kLaunchers, [&](const char* one) { return text.starts_with(one); });
}

/// True if the blank at column `c` separates a number from its unit.
bool before_unit(const TextLine& line, std::size_t c) {
  constexpr std::array<std::string_view, 12> kUnits = {"s", "ms",  "us",  "ns",  "%",   "x",
                                                       "B", "KiB", "MiB", "GiB", "TiB", "GB/s"};
  if (std::isdigit(static_cast<unsigned char>(line.from(c - 1)[0])) == 0) return false;
  const std::string_view rest = line.from(c + 1);
  return std::ranges::any_of(kUnits, [&](std::string_view unit) {
    return rest.starts_with(unit) &&
           (rest.size() == unit.size() ||
            std::isalnum(static_cast<unsigned char>(rest[unit.size()])) == 0);
  });
}

/// The last column of at most `most`, and behind `least`, at which a line may be broken: not before
/// a unit, and in a command not inside single quotes, and inside double quotes only if there is no
/// other column. If there is none, the first one behind `most`, or the end of the line.
std::size_t break_of(const TextLine& line, std::size_t least, std::size_t most, bool command) {
  std::size_t best = 0, quoted = 0;
  char quote = 0;
  for (std::size_t c = 0; c < line.width(); ++c) {
    const char letter = line.from(c)[0];
    if (command && (letter == '"' || letter == '\'') && (quote == 0 || quote == letter))
      quote = quote == 0 ? letter : '\0';
    if (letter != ' ' || c <= least || quote == '\'' || before_unit(line, c)) continue;
    if (c > most && best + quoted > 0) break;
    (quote == 0 ? best : quoted) = c;
    if (c > most) break;
  }
  return best > 0 ? best : quoted > 0 ? quoted : line.width();
}

std::string broken_line(std::string_view text, std::size_t columns, std::size_t hang,
                        bool command) {
  constexpr std::string_view kContinued = " \\";
  const bool continued = command && text.ends_with(kContinued);
  if (continued) text.remove_suffix(kContinued.size());
  std::string out, rest(text);
  const std::size_t room = columns - (command ? kContinued.size() : 0);
  for (std::size_t least = TextLine(text).indent();; least = hang) {
    const TextLine line(rest);
    const std::size_t at =
        line.width() <= room ? line.width() : break_of(line, least, room, command);
    out += line.until(at);
    if (at >= line.width()) return continued ? out.append(kContinued) : out;
    out.append(command ? kContinued : "").append("\n");
    rest = std::string(hang, ' ').append(trim(line.from(at)));
  }
}

/// The column at which all rows can be cut: the widest one of at most `columns` that is blank in
/// every longer row, and lies between two cells of at least half of them. 0 if there is none.
std::size_t cut_of(const std::vector<TextLine>& rows, std::size_t columns) {
  for (std::size_t c = columns; c >= columns / 2; --c) {
    std::size_t longer = 0, between = 0;
    bool clear = true;
    for (const TextLine& row : rows) {
      if (row.width() <= c) continue;
      ++longer;
      clear = clear && row.blank(c - 1);
      between += row.blank(c - 1) && (row.blank(c - 2) || row.blank(c)) ? 1 : 0;
    }
    if (clear && longer > 0 && 2 * between >= longer) return c;
  }
  return 0;
}

/// The rows with at most this number of blanks between columns.
std::vector<std::string> squeezed(const std::vector<std::string>& rows, std::size_t most) {
  const std::vector<TextLine> lines(rows.begin(), rows.end());
  std::size_t width = 0, indent = std::string::npos;
  for (const TextLine& line : lines) {
    width = std::max(width, line.width());
    indent = std::min(indent, line.indent());
  }
  std::vector<std::string> out(rows.size());
  for (std::size_t c = 0, blanks = 0; c < width; ++c) {
    const bool blank =
        std::ranges::all_of(lines, [&](const TextLine& line) { return line.blank(c); });
    blanks = blank && c >= indent ? blanks + 1 : 0;
    if (blanks > most) continue;
    for (std::size_t i = 0; i < lines.size(); ++i) out[i] += lines[i].character(c);
  }
  for (std::string& row : out) row.erase(row.find_last_not_of(' ') + 1);
  return out;
}

bool fit(const std::vector<std::string>& rows, std::size_t columns) {
  return std::ranges::all_of(
      rows, [&](const std::string& row) { return TextLine(row).width() <= columns; });
}

/// Each row as one line or several; all rows are cut at the same columns.
std::vector<std::string> folded_rows(const std::vector<std::string>& rows, std::size_t columns) {
  const std::vector<TextLine> lines(rows.begin(), rows.end());
  if (fit(rows, columns)) return rows;
  std::vector<std::string> out;
  const std::size_t cut = cut_of(lines, columns);
  if (cut == 0) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      out.push_back(broken_line(rows[i], columns, hanging_indent(lines[i], columns), false));
    return out;
  }
  std::size_t blanks = std::string::npos, indent = std::string::npos;
  for (const TextLine& line : lines) {
    indent = std::min(indent, line.indent());
    if (line.width() > cut) blanks = std::min(blanks, TextLine(line.from(cut)).indent());
  }
  std::vector<std::string> tails;
  for (const TextLine& line : lines)
    tails.push_back(line.width() > cut
                        ? std::string(indent + kDeeper, ' ').append(line.from(cut + blanks))
                        : "");
  tails = folded_rows(tails, columns);
  for (std::size_t i = 0; i < lines.size(); ++i)
    out.push_back(std::string(lines[i].until(cut)) + (tails[i].empty() ? "" : "\n" + tails[i]));
  return out;
}

/// A table by columns. They are separated where every row has a blank, and half of the rows that
/// are longer have a second one beside it. A column without a name belongs to the next one that has
/// a name.
class TextTable {
 public:
  explicit TextTable(const std::vector<std::string>& rows)
      : rows_(rows), lines_(rows_.begin(), rows_.end()) {
    std::size_t width = 0;
    for (const TextLine& line : lines_) width = std::max(width, line.width());
    std::vector<std::size_t> begins{0};
    for (std::size_t c = lines_.front().indent() + 2; c < width; ++c)
      if (begins_column(c)) begins.push_back(c);
    begins.push_back(width);
    for (std::size_t i = 0, begin = 0; i + 1 < begins.size(); ++i) {
      const std::string name = text_of(lines_.front(), begins[i], begins[i + 1]);
      if (name.empty() && i + 2 < begins.size()) continue;
      columns_.push_back({begin, begins[i + 1], name});
      begin = begins[i + 1];
    }
  }
  /// The column of the screen at which the last column begins.
  std::size_t last_begin() const {
    std::size_t begin = columns_.back().begin;
    while (std::ranges::all_of(lines_, [&](const TextLine& line) { return line.blank(begin); }))
      ++begin;
    return begin;
  }
  /// True if the first row has names: words without a digit, for four columns or more.
  bool named() const {
    return columns_.size() >= 4 && std::ranges::none_of(rows_.front(), [](unsigned char letter) {
             return std::isdigit(letter) != 0;
           });
  }
  /// The rows with as many columns as fit, and the line that names the others. Empty if fewer than
  /// two columns fit.
  std::vector<std::string> narrowed(std::size_t columns) const {
    const bool verdict = columns_.back().name.empty();
    for (std::size_t kept = columns_.size() - (verdict ? 2 : 1); kept >= 2; --kept) {
      std::vector<std::string> rows = squeezed(kept_rows(kept, verdict), 1);
      if (!fit(rows, columns)) continue;
      const std::vector<std::string> wider = squeezed(kept_rows(kept, verdict), 2);
      if (fit(wider, columns)) rows = wider;
      std::vector<std::string> names;
      for (std::size_t i = kept; i < columns_.size() - (verdict ? 1 : 0); ++i)
        names.push_back(columns_[i].name);
      rows.push_back(broken_line(
          fmt::format("  (too wide for this terminal, shown by `| cat`: {})", join(names, ", ")),
          columns, 2, false));
      return rows;
    }
    return {};
  }

 private:
  struct Column {
    std::size_t begin, end;
    std::string name;
  };
  bool begins_column(std::size_t c) const {
    std::size_t longer = 0, separated = 0;
    bool used = false;
    for (const TextLine& line : lines_) {
      if (!line.blank(c - 1)) return false;
      if (line.width() <= c) continue;
      ++longer;
      used = used || !line.blank(c);
      separated += line.blank(c - 2) || line.blank(c) ? 1 : 0;
    }
    return used && 2 * separated >= longer;
  }
  static std::string text_of(const TextLine& line, std::size_t begin, std::size_t end) {
    std::string text;
    for (std::size_t c = begin; c < end; ++c) text += line.character(c);
    return std::string(trim(text));
  }
  /// The rows with the first columns, and with the last one if it is a verdict.
  std::vector<std::string> kept_rows(std::size_t kept, bool verdict) const {
    std::vector<std::string> rows;
    for (const TextLine& line : lines_) {
      std::string& row = rows.emplace_back();
      for (std::size_t c = 0; c < columns_[kept - 1].end; ++c) row += line.character(c);
      if (verdict) row.append(line.from(columns_.back().begin));
    }
    return rows;
  }

  std::vector<std::string> rows_;
  std::vector<TextLine> lines_;  // views of rows_
  std::vector<Column> columns_;
};

/// The rows of a table in the first form that fits.
std::vector<std::string> fitted_rows(const std::vector<std::string>& rows, std::size_t columns) {
  if (fit(rows, columns)) return rows;
  std::vector<std::string> wider = squeezed(rows, 2);
  if (fit(wider, columns)) return wider;
  std::vector<std::string> narrowest = squeezed(rows, 1);
  if (fit(narrowest, columns)) return narrowest;
  const TextTable table(wider);
  if (const std::size_t begin = table.last_begin(); begin <= columns / 2) {
    for (std::string& row : wider)
      if (TextLine(row).width() > columns) row = broken_line(row, columns, begin, false);
    return wider;
  }
  std::vector<std::string> narrowed;
  if (table.named()) narrowed = table.narrowed(columns);
  return narrowed.empty() ? folded_rows(wider, columns) : narrowed;
}

/// True if a colon follows one of the first three words, as in "longest messages: 512 x".
bool begins_label(std::string_view text) {
  for (int words = 0; words < 3; ++words) {
    const std::size_t end = text.find(' ');
    if (text.substr(0, end).ends_with(':')) return true;
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + 1);
  }
  return false;
}

/// True if a paragraph was broken between two lines only because of the usual width. The line
/// before may be full by chance: a label begins a text of its own, and so does a line without an
/// indent, because paragraphs that are broken where they are made have one.
bool continues(const TextLine& line, std::size_t indent, const TextLine& next) {
  if (line.width() > kUsualWidth || next.width() == 0 || next.indent() != indent) return false;
  if (indent == 0 || begins_label(next.from(indent))) return false;
  std::size_t word = next.indent();
  while (!next.blank(word)) ++word;
  return line.width() + 1 + word - indent > kUsualWidth && next.cells().empty() &&
         !next.from(indent).starts_with("-> ");
}

/// True for a row of names below another line, with which another table begins: "# size   time".
bool begins_names(const std::string& line, const std::string& before) {
  return line.starts_with('#') && !(before.starts_with('#') && is_row(TextLine(before)));
}

/// The end of the table that begins at `first`: rows, with remarks between them, which are deeper
/// than the rows, or single lines that fit.
std::size_t end_of_table(const std::vector<std::string>& lines, std::size_t first,
                         std::size_t columns) {
  const std::size_t indent = TextLine(lines[first]).indent();
  std::size_t end = first + 1, others = 0;
  for (std::size_t i = end; i < lines.size() && others < 2; ++i) {
    const TextLine line(lines[i]);
    if (is_row(line)) {
      if (begins_names(lines[i], lines[i - 1])) break;
      end = i + 1;
      others = 0;
    } else if (line.width() == 0) {
      break;
    } else if (line.indent() <= indent + 2) {
      if (line.width() > columns) break;
      ++others;
    }
  }
  return end;
}

/// JSON is for programs, also on a terminal.
bool is_json(std::string_view text) {
  constexpr std::string_view kBegins = "{[\"\n]";
  return text.starts_with('{') ||
         (text.size() > 1 && text[0] == '[' && kBegins.find(text[1]) != std::string_view::npos);
}

bool is_command_line(const TextLine& line, std::size_t columns) {
  return is_command(line.from(line.indent())) ||
         is_command(line.from(hanging_indent(line, columns)));
}

/// Appends the line at `i`, with the lines that continue it if it is too wide, and moves `i` behind
/// them.
void append_paragraph(std::vector<std::string>& out, std::span<const std::string> lines,
                      std::size_t& i, std::size_t columns) {
  const TextLine line(lines[i]);
  std::string paragraph = lines[i++];
  if (line.width() <= columns || is_json(line.from(line.indent()))) {
    out.push_back(paragraph);
    return;
  }
  const bool command = is_command_line(line, columns);
  const std::size_t indent = i < lines.size() && continues(line, line.indent(), TextLine(lines[i]))
                                 ? line.indent()
                                 : hanging_indent(line, columns);
  while (!command && i < lines.size() &&
         continues(TextLine(lines[i - 1]), indent, TextLine(lines[i])))
    paragraph.append(" ").append(trim(lines[i++]));
  out.push_back(broken_line(paragraph, columns, indent, command));
}

/// Appends the lines of a table: its rows in the form that fits, and the remarks between them.
void append_table(std::vector<std::string>& out, std::span<const std::string> table,
                  std::size_t columns) {
  std::vector<std::string> rows;
  for (const std::string& line : table)
    if (is_row(TextLine(line))) rows.push_back(line);
  rows = fitted_rows(rows, columns);
  auto row = rows.begin();
  for (std::size_t i = 0; i < table.size();) {
    if (!is_row(TextLine(table[i]))) {
      append_paragraph(out, table, i, columns);
      continue;
    }
    out.push_back(*row++);
    ++i;
  }
  out.insert(out.end(), row, rows.end());
}

}  // namespace

std::string fitted(std::string_view text, std::size_t columns) {
  if (columns == 0 || is_json(text)) return std::string(text);
  const std::vector<std::string> lines = split(std::string(text), '\n');
  std::vector<std::string> out;
  for (std::size_t i = 0; i < lines.size();) {
    const TextLine line(lines[i]);
    if (is_row(line) && !is_command_line(line, columns)) {
      const std::size_t end = end_of_table(lines, i, columns);
      append_table(out, {lines.data() + i, end - i}, columns);
      i = end;
    } else {
      append_paragraph(out, lines, i, columns);
    }
  }
  return join(out, "\n");
}

}  // namespace choir
