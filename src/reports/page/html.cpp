#include "reports/page/html.hpp"

#include <fmt/format.h>

#include <array>

#include "core/text.hpp"
#include "reports/page/style.hpp"

namespace sailor::reports {

namespace {

constexpr std::string_view page_start =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"generator\" content=\"sailor-report\">\n";
// Letters on the colours of style.hpp: true where they are dark.
constexpr std::array<bool, 8> dark_letters{false, false, false, true, true, true, false, false};

std::size_t palette_index(int color) {
  constexpr int size = static_cast<int>(dark_letters.size());
  return static_cast<std::size_t>(((color % size) + size) % size);
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string html;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        html += byte < 0x20 || byte == 0x7f ? ' ' : c;
      }
    }
  }
  return html;
}

std::string html_table(const std::vector<Table::Column>& columns, const std::vector<std::vector<std::string>>& rows) {
  const auto cell_class = [&](std::size_t column) {
    if (columns[column].title.empty() && column > 0) return " class=\"bad\"";
    return columns[column].align == Align::right ? " class=\"n\"" : "";
  };
  std::string html = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (std::size_t c = 0; c < columns.size(); ++c)
    html += fmt::format("<th{}>{}</th>", cell_class(c), html_text(columns[c].title));
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    html += "<tr>";
    for (std::size_t c = 0; c < columns.size(); ++c)
      html += fmt::format("<td{}>{}</td>", cell_class(c), html_text(row[c]));
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string html = "<div class=\"scroll\"><table class=\"facts\">\n";
  for (const auto& [what, value] : facts)
    html += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", html_text(what), html_text(value));
  return html + "</table></div>\n";
}

std::string html_legend(const std::vector<LegendEntry>& entries) {
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : entries)
    html += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 12 12\"><rect class=\"{}\" width=\"12\" height=\"12\"/></svg>{}</li>",
        entry.color, html_text(entry.title));
  return html + "</ul>\n";
}

std::string fill_class(int color) { return fmt::format("f{}", palette_index(color)); }

std::string letters_class(int color) { return dark_letters[palette_index(color)] ? "dark" : "light"; }

std::string html_page(std::string_view title, std::string_view heading, const std::vector<HtmlSection>& sections,
                      std::string_view made_by) {
  std::string html = fmt::format(
      "{}<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src "
      "data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<header>\n{}<nav>",
      page_start, html_text(title), page_style, heading);
  for (const HtmlSection& section : sections)
    html += fmt::format("<a href=\"#{}\">{}</a> ", section.id, html_text(section.title));
  html += "</nav>\n</header>\n<main>\n";
  for (const HtmlSection& section : sections)
    html += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"source\">{}</p>\n{}</section>\n", section.id,
                        html_text(section.title), html_text(section.source), section.body);
  return html + fmt::format("</main>\n<footer>{}</footer>\n</body>\n</html>\n", html_text(made_by));
}

bool is_html_page(std::string_view text) { return text.starts_with(page_start); }

}  // namespace sailor::reports
