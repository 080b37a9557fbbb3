// The pages. A page with `nav` is in the navigation; a module is loaded when its page is first shown.
//
//   { path: "/t/:topic", title: "Topic", load: () => import("./pages/topic.js") }
//
// `title` may be a function of the page's params. `example` is a path that a test opens instead of a
// pattern: add one to each page with params.

export const pages = [
  { path: "/", title: "Overview", nav: "Overview", load: () => import("./pages/overview.js") },
  { path: "/x/:topic/:partition", title: ({ topic, partition }) => `${topic}/${partition}`, example: "/x/orders/0", load: () => import("./pages/xray.js") },
  { path: "/events", title: "Events", nav: "Events", load: () => import("./pages/events.js") },
];
