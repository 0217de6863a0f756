/* The page, its style and its scripts in cli/page/, which the build turns into these (cli/page/embed.cmake). */
#ifndef CLI_PAGE_FILES_H
#define CLI_PAGE_FILES_H

extern const char page_html[], page_css[], page_js[]; /* terminated */

#endif
