// The pages. A page with `nav` is in the navigation; a module is loaded when its page is first shown.
//
//   { path: "/t/:topic", title: "Topic", load: () => import("./pages/topic.js") }
//
// `title` may be a function of the page's params. `example` is a path that a test opens instead of a
// pattern: add one to each page with params.

export const pages = [
  { path: "/", title: "Overview", nav: "Overview", load: () => import("./pages/overview.js") },
  { path: "/x/:topic/:partition", title: ({ topic, partition }) => `${topic}/${partition}`, example: "/x/orders/0", load: () => import("./pages/xray.js") },
  { path: "/t", title: "Topics", nav: "Topics", load: () => import("./pages/topics.js") },
  { path: "/t/:topic", title: ({ topic }) => topic, example: "/t/orders", load: () => import("./pages/topic.js") },
  { path: "/t/:topic/m", title: ({ topic }) => `Messages of ${topic}`, example: "/t/orders/m", load: () => import("./pages/messages.js") },
  { path: "/g", title: "Groups", nav: "Groups", load: () => import("./pages/groups.js") },
  { path: "/g/:group", title: ({ group }) => group, example: "/g/billing", load: () => import("./pages/group.js") },
  { path: "/txns", title: "Transactions", nav: "Transactions", load: () => import("./pages/transactions.js") },
  { path: "/clients", title: "Clients", nav: "Clients", load: () => import("./pages/clients.js") },
  { path: "/pipelines", title: "Pipelines", nav: "Pipelines", load: () => import("./pages/pipelines.js") },
  { path: "/events", title: "Events", nav: "Events", load: () => import("./pages/events.js") },
  { path: "/learn", title: "Learn", nav: "Learn", when: (session) => session?.owner, load: () => import("./pages/learn.js") },
  { path: "/learn/:scene", title: "Learn", example: "/learn/watermark", load: () => import("./pages/learn.js") },
  { path: "/docs", title: "Documentation", nav: "Docs", load: () => import("./pages/docs.js") },
  { path: "/docs/:page", title: "Documentation", example: "/docs/tutorial", load: () => import("./pages/docs.js") },
  { path: "/docs/:folder/:page", title: "Documentation", example: "/docs/guide/console", load: () => import("./pages/docs.js") },
];
