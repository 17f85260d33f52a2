// Pieces of an HTML page that needs no other file: text, tables, legends and sections.
//
// Everything that comes from a file or from the command line goes through html_text(); the page's policy forbids
// scripts and requests, so that a name that got past it could do nothing.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/terminal.hpp"

namespace sailor::reports {

/// The text as HTML shows it, also inside quoted attributes: markup characters become references, control characters
/// spaces, bytes that are not UTF-8 U+FFFD.
std::string html_text(std::string_view text);

/// A table that scrolls sideways where the window is narrow. Rows need a cell for each column. The cells of the column
/// without a title are set like warnings.
std::string html_table(const std::vector<Table::Column>& columns, const std::vector<std::vector<std::string>>& rows);

/// A table of two columns without a head: what, and its value.
std::string html_facts(const std::vector<std::pair<std::string, std::string>>& facts);

/// An entry of a legend; `color`: a class of the page's palette, see fill_class().
struct LegendEntry {
  std::string color{};
  std::string title{};
};
std::string html_legend(const std::vector<LegendEntry>& entries);

/// Class that fills a shape with a colour of the page's palette: any number, colours repeat after eight.
std::string fill_class(int color);
/// Class of letters that are readable on such a shape.
std::string letters_class(int color);

struct HtmlSection {
  std::string id{};      ///< unique: the target of links
  std::string title{};   ///< plain text
  std::string source{};  ///< one sentence, plain text: where the numbers come from
  std::string body{};    ///< HTML
};

/// The whole page. `heading`: HTML above the links to the sections.
std::string html_page(std::string_view title, std::string_view heading, const std::vector<HtmlSection>& sections,
                      std::string_view made_by);

/// Whether a text is a page of html_page(), which may be replaced by a newer one.
bool is_html_page(std::string_view text);

}  // namespace sailor::reports
